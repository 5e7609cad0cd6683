"""What the lines of a hospital's table hold, feature by feature and in the table's own numbers, for its own page."""

from __future__ import annotations

from evaluation.histograms import Floats
from pipelines.data.cohort import Cohort
from pipelines.data.images import IMAGES, Features
from pipelines.data.tables.features import from_json, restore_table_values


def read_features(cohort: Cohort) -> dict[str, Floats]:
    """Feature -> (n,) values. A category is a feature "name = value" for each of its values; nothing for images.

    Of principal components, from which the table cannot be told again, the components themselves.
    """
    settings = cohort.recipe.get("images")
    images = IMAGES.validate_python(settings) if settings is not None else None
    if not isinstance(images, Features):
        return {}
    if images.components is not None:
        return {f"component {place + 1}": cohort.images[:, place].double().numpy() for place in range(*images.inputs)}
    table: Floats = restore_table_values(cohort.images, images, from_json(cohort.recipe.get("scale"))).numpy()
    features: dict[str, Floats] = {name: table[:, place] for place, name in enumerate(images.numbers)}
    start = len(images.numbers)
    for name, values in images.categories.items():
        coded = table[:, start : start + len(values) - 1].round()
        start += len(values) - 1
        columns = [1 - coded.sum(axis=1), *coded.T]
        features |= {f"{name} = {value}": column for value, column in zip(values, columns, strict=True)}
    return features
