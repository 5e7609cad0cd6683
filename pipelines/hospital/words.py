"""Words of a hospital's page: names of examples, and the contents of the reply to each request."""

from __future__ import annotations

from collections.abc import Mapping

from evaluation.wording import Words

WORDS: Mapping[str, Words] = {
    "slices": Words("slice", "slices", "study", "studies"),
    "volumes": Words("volume", "volumes", "study", "studies"),
    "pictures": Words("picture", "pictures", "picture", "pictures"),
    "tensors": Words("example", "examples", "example", "examples"),
    "features": Words("line", "lines", "line", "lines", looked_at=False),
}
"""Kind of example -> what it is called."""

CONTENTS: Mapping[str, str] = {
    "survey": "number and size of files; a keyed digest of names, sizes and times; what this policy answers",
    "moments": "number, sums and sums of squares of the training patients' features",
    "ingest": "counts by split, by reason of rejection and by scanner; digest of the cohort",
    "score": "how hard its images are to imitate: one number",
    "synthesize": "that it has learnt to imitate its images; nothing of what it learnt",
    "sample": "synthetic images, which every hospital gets",
    "translate": "name of a translated cohort, what the translation did to its images, and whether it is used",
    "augment": "name of a cohort with synthetic training images; how many; if nothing is promised, how far from real",
    "extract": "name of a cohort with features of its images",
    "introduce": "that it takes part, and what the method must know first",
    "train": "parameters of the method, validation loss, number of examples",
    "finish": "the last round's validation loss",
    "export": "its model, to be tested at other hospitals",
    "route": "scores on its patients, as an external site",
    "benchmark": "scores of a signed model on all of its patients, and the model's digest; noised where it promises",
    "evaluate": "scores on test patients: noised histograms; or exact ones, or sums of overlaps, and bootstrap copies",
    "audit": "how well an attack tells training patients from others, or draws their images, if nothing is guaranteed",
    "pool": "training and validation examples with their labels, for the central baseline",
    "compare": "how much better models are than its own on validation patients, where nothing is promised",
    "track": "that figures which it released may be copied to tracking tools; nothing new",
    "report": "counts of messages and bytes; digest of the page; where nothing is promised, the recommended model",
    "holds": "whether it still has what a result rests on",
}
"""Request -> what its reply holds."""
