"""Decide whether an image is an ADC map, from its header, its name or the settings; never from its values alone.

A T2-weighted image has values like ADC in some unit, so values can only rule ADC out. The checks of a header run in
order of reliability, and the first with a result decides: codes and ImageType are written by the machine that made the
pixels, a description is free text, and a ProtocolName names the acquisition, which an ADC map shares with its sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipelines.data.adc import find_unit_factor
from pipelines.data.headers import text_of
from pipelines.data.study import Unusable

if TYPE_CHECKING:
    from pydicom.dataset import Dataset  # slow to import

HEADERS = (
    *("ImageType", "SeriesDescription", "ProtocolName", "Modality", "RescaleType", "ModalityLUTSequence"),
    *("DerivationCodeSequence", "QuantityDefinitionSequence", "RealWorldValueMappingSequence"),
    "MeasurementUnitsCodeSequence",
)
"""DICOM keywords that may describe the values."""

ADC_CODES = frozenset({"113041", "113289", "113290"})  # DCM: ADC, Diffusion Coefficient, Mono-exponential ADC
OTHER_CODES = frozenset(  # DCM, of CID 7180, 7263, 7270 to 7272: other kinds of diffusion images
    {"113043", "113044", "113045", "110808", "110809", "113201", "113203", "113204", "113209"}
    | {"113291", "113292", "113293", "113294", "113298", *(str(code) for code in range(110810, 110816))}
)
ADC_TYPES = frozenset({"ADC", "ADC_UNSPECIFIED"})
OTHER_MAPS = frozenset({"EADC", "EXP", "FA", "RA", "TENSOR", "TENSOR_B0", "CALC_BVALUE", "TRACE", "TRACEW"})
DIFFUSION = frozenset({"DIFFUSION", "DIFFUSION_ANISO", "DIFFUSION_ATTNTD", "DIFFUSION_ISO"})
SIGNALS = frozenset(  # checked after the description: a reformatted ADC map keeps the M of any magnitude image
    {"M", "M_SE", "M_FFE", "M_IR", "MAGNITUDE", "P", "PHASE", "PHASE MAP", "R", "REAL", "I", "IMAGINARY", "MOSAIC"}
    | {"T1", "T2", "T2_STAR", "PROTON_DENSITY", "STIR", "T1_MAP", "T2_MAP", "PERFUSION", "LOCALIZER", "WATER", "FAT"}
)
SAYS_ADC = re.compile(
    r"(?<![a-z])d?adc[ _-]?(?:maps?)?(?![a-z])|app(?:arent)?[\W_]*diff(?:usion)?[\W_]*coeff?|diffusion[\W_]*coefficient"
    r"|coefficient[\W_]+(?:apparent[\W_]+)?de[\W_]+diffusion"
)
DOUBT = (
    r"(?:errors?|residuals?|variances?|sigma|uncertaint(?:y|ies)|confidence|rmse|chi[\W_]*(?:2|²|squared?)|χ[\W_]*(?:2|²)"
    r"|std?[\W_]*dev(?:iation)?|standard[\W_]*deviations?|goodness[\W_]*of[\W_]*fit"
    r"|r[\W_]*squared?|(?<=adc[\W_])r[\^]?[2²])"
)
"""Words for images of a fit's errors, which often have the unit of the fitted map."""
SAYS_DOUBT = re.compile(rf"(?<![a-zχ]){DOUBT}(?![a-z])")
SAYS_OTHER = re.compile(
    rf"(?<![a-zχ])(?:eadc|(?<!mono[ _-])exp(?:onential)?|masks?|seg|segmentation|roi|labels?|{DOUBT}|(?<=adc[\W_])std)"
    r"(?![a-z])"
)
SIGNAL_WORDS = re.compile(
    r"(?<![a-z0-9])(?:dwi|dti|diff|diffusion|trace|tracew|isotropic|b[- ]?\d{1,5}|(?:calc[ _]?)?b-?val(?:ue)?|t1w?|"
    r"t2w?|t2starw?|pdw?|sbref|angio|asl|magnitude\d?|phase(?:diff)?\d?|flair|stir|swi|bold|dce|perf|perfusion|fa|md|"
    r"localizer|localiser|scout|ct|pet|pt)"
    r"(?![a-z0-9])"
)
CONTRASTS = re.compile(
    r"(?<![a-z0-9])(?:t1w?|t2w?|t2starw?|pdw|flair|stir|swi|dce|sbref|localizer|localiser|scout)(?![a-z0-9])"
)
"""Those that never describe an ADC map; together with the word ADC they are ambiguous, as in t2_registered_to_adc."""


class AdcDecision(NamedTuple):
    """adc: True = an ADC map, False = something else, None = unknown. evidence: for a person to read."""

    adc: bool | None
    evidence: str


SILENT = AdcDecision(None, "")


def decide_from_headers(values: Mapping[str, object]) -> AdcDecision:
    """The decision by a header. values: DICOM keyword -> value, from a `Frame` or a sidecar with the same keywords."""
    decisions = [
        decide(values)
        for decide in (
            _decide_by_modality,
            _decide_by_doubt,
            _decide_by_codes,
            _decide_by_image_type,
            _decide_by_unit,
            _decide_by_description,
            _decide_by_signal,
        )
    ]
    clear = (decision for decision in decisions if decision.adc is not None)
    return next(clear, next((decision for decision in decisions if decision.evidence), SILENT))


def decide_from_text(text: str, source: str) -> AdcDecision:
    """The decision by free text: a description, or a name. Only whole words count (not in CADCAM). source: its name."""
    low = text.lower()
    other, adc = SAYS_OTHER.search(low), SAYS_ADC.search(low)
    if adc and not other:
        # Quote only the matched words: a description may also contain a patient's name.
        word = text[slice(*adc.span())].strip(" _-")
        contrast = find_contrast(low)
        both = f"{source} says both {word} and {contrast}"
        return AdcDecision(None, both) if contrast else AdcDecision(True, f"{source} says {word}")
    signal = SIGNAL_WORDS.search(low.replace("_", " "))
    return AdcDecision(False, f"{source} says {text[:80]!r}") if other or signal else SILENT


def find_contrast(text: str) -> str:
    """The first word for another contrast, which no ADC map has in its name; "" if there is none."""
    match = CONTRASTS.search(text.lower().replace("_", " "))
    return match[0] if match else ""


def decide_for_series(decisions: Sequence[AdcDecision]) -> AdcDecision:
    """The decision for a series: it is an ADC map if all its images are."""
    other_decisions = [decision for decision in decisions if not decision.adc]
    if not other_decisions or len(other_decisions) == len(decisions):
        return next((decision for decision in other_decisions if decision.adc is False), decisions[0])
    reason = next((decision.evidence for decision in other_decisions if decision.evidence), "nothing is said of them")
    return AdcDecision(False, f"{len(other_decisions)} of {len(decisions)} images are no ADC map: {reason}")


def check_adc(decision: AdcDecision, *, declared: bool, seen: str) -> None:
    """Refuse an image that is not known to be an ADC map.

    declared: the settings give a unit, and thereby state that these are ADC maps; that replaces missing evidence, but
    does not overrule the image's own header. seen: the header's texts, for the message.

    Raises:
        Unusable: `not_adc`.
    """
    if decision.adc is False:
        raise Unusable(
            "not_adc",
            f"{decision.evidence}, so it is not an ADC map. Narrow `select` or `pattern` down to ADC maps; of "
            "diffusion-weighted images with several b-values, `derive: adc` fits one; other images need "
            "`values: standardized`.",
        )
    if decision.adc is None and not declared:
        why = (
            f"{decision.evidence}: which it is, is open" if decision.evidence else "nothing says that it is an ADC map"
        )
        raise Unusable(
            "not_adc",
            f"{why} ({seen}). If it is one, say so by its unit, as in unit: 1e-6 mm2/s (--unit on the command line).",
        )


def format_header_texts(values: Mapping[str, object]) -> str:
    """The header texts that could describe the kind of image."""
    keywords = ("ImageType", "SeriesDescription", "ProtocolName")
    return "; ".join(f"{key} {text_of(values.get(key))[:80] or 'missing'!r}" for key in keywords)


def _decide_by_modality(values: Mapping[str, object]) -> AdcDecision:
    """Any Modality but MR, OT or an empty one rules ADC out."""
    text = text_of(values.get("Modality")).strip().upper()
    return SILENT if text in ("", "MR", "OT") else AdcDecision(False, f"Modality says {text!r}")


def _decide_by_doubt(values: Mapping[str, object]) -> AdcDecision:
    """A description of a fit's errors. It goes before codes and units, which such images share with the fitted map."""
    text = text_of(values.get("SeriesDescription"))
    return AdcDecision(False, f"SeriesDescription says {text[:80]!r}") if SAYS_DOUBT.search(text.lower()) else SILENT


def _decide_by_codes(values: Mapping[str, object]) -> AdcDecision:
    """Derivation and quantity codes, also those in a real-world value map (DICOM PS3.16 CID 7180, 7203, 7272)."""
    codes = {(keyword, code) for keyword, code in _dcm_codes(values)}
    for known, adc in ((ADC_CODES, True), (OTHER_CODES, False)):
        for keyword, code in sorted(codes):
            if code in known:
                return AdcDecision(adc, f"{keyword} says {code} (DCM)")
    return SILENT


def _dcm_codes(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(keyword, code) of all derivation and quantity codes of the scheme DCM."""
    maps = _dataset_items(values.get("RealWorldValueMappingSequence"))
    quantities = [
        *_dataset_items(values.get("QuantityDefinitionSequence")),
        *(item for value_map in maps for item in _dataset_items(value_map.get("QuantityDefinitionSequence"))),
    ]
    coded_items = [("DerivationCodeSequence", item) for item in _dataset_items(values.get("DerivationCodeSequence"))]
    coded_items += [
        ("QuantityDefinitionSequence", code)
        for item in quantities
        for code in _dataset_items(item.get("ConceptCodeSequence"))
        + _dataset_items(item.get("ConceptNameCodeSequence"))
    ]
    for keyword, item in coded_items:
        if str(item.get("CodingSchemeDesignator") or "") == "DCM":
            yield keyword, str(item.get("CodeValue") or "")


def _dataset_items(value: object) -> list[Dataset]:
    """The datasets of a sequence; empty if the value is no sequence."""
    from pydicom.dataset import Dataset

    return [item for item in value if isinstance(item, Dataset)] if isinstance(value, Sequence) else []


def _decide_by_image_type(values: Mapping[str, object]) -> AdcDecision:
    """ImageType, where it names ADC or another kind of diffusion map."""
    text = text_of(values.get("ImageType")).upper()
    words = set(text.split("\\"))
    if words & ADC_TYPES:
        return AdcDecision(True, "ImageType says ADC")
    return AdcDecision(False, f"ImageType says {text!r}") if words & (OTHER_MAPS | DIFFUSION) else SILENT


def _decide_by_unit(values: Mapping[str, object]) -> AdcDecision:
    """A unit of diffusivity. Descriptions are ignored: GE writes mm2/s there for values in 1e-6 mm²/s."""
    tables = _dataset_items(values.get("ModalityLUTSequence"))
    texts = [
        ("RescaleType", text_of(values.get("RescaleType"))),
        *(("ModalityLUTSequence", text_of(table.get("LUTExplanation"))) for table in tables),
        *(
            ("RealWorldValueMappingSequence", text_of(code.get("CodeValue") or code.get("CodeMeaning")))
            for item in (*_dataset_items(values.get("RealWorldValueMappingSequence")), values)
            for code in _dataset_items(item.get("MeasurementUnitsCodeSequence"))
        ),
        ("Units", text_of(values.get("Units"))),  # of a BIDS sidecar
    ]
    return next(
        (AdcDecision(True, f"{name} says {text!r}") for name, text in texts if find_unit_factor(text) is not None),
        SILENT,
    )


def _decide_by_description(values: Mapping[str, object]) -> AdcDecision:
    """The description. Of an ORIGINAL image it names the acquisition from which a map is later computed, `DWI_ADC`."""
    source = "SeriesDescription" if text_of(values.get("SeriesDescription")).strip() else "ProtocolName"
    text = text_of(values.get(source))
    decision = decide_from_text(text, source)
    if decision.adc and "ORIGINAL" in text_of(values.get("ImageType")).upper().split("\\"):
        return decide_from_text(SAYS_ADC.sub(" ", text.lower()), source)
    return decision


def _decide_by_signal(values: Mapping[str, object]) -> AdcDecision:
    """ImageType, where it names a kind of signal."""
    text = text_of(values.get("ImageType")).upper()
    return AdcDecision(False, f"ImageType says {text!r}") if set(text.split("\\")) & SIGNALS else SILENT
