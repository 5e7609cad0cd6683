"""The laws of methods, networks, translators, extractors and readers, to be run on one's own.

In a test file, two lines:

    from consilium.testing import contract
    test_mine = contract(Mine())

or, for everything that installed packages offer, with their defaults, no line at all:

    pytest --pyargs consilium.testing

Our own tests run the same functions on our own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from consilium.testing import extractors, methods, networks, private, readers, testbed, translators
from consilium.testing.held import hold, in_doubles
from consilium.testing.readers import Reading
from consilium.testing.runs import ADAM, MASKS, SGD, TABLES, Case, Ground
from consilium.testing.strict import settings_are_read_strictly_and_written_whole
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.features import EXTRACTORS, Extracting
from federation.models import MODELS
from federation.task import Kind, Model, Task
from harmonize.translation import TRANSLATORS, Translator
from personalize import ALGORITHMS
from pipelines.data.images import AnyImages
from pipelines.data.readers import READERS, Reader
from pipelines.data.sources import GlandMask, Labels

__all__ = [
    "Case",
    "Ground",
    "Reading",
    "contract",
    "extractor_contract",
    "extractor_laws",
    "method_laws",
    "model_contract",
    "model_laws",
    "reader_contract",
    "reader_laws",
    "translator_contract",
    "translator_laws",
]

Check: TypeAlias = Callable[[], None]
"""A law on a case. Raises: AssertionError: it is broken, in words."""
STRICT = "settings_are_read_strictly_and_written_whole"


def contract(*algorithms: Algorithm, grounds: Mapping[str, Ground] | None = None) -> Callable[..., None]:
    """A test of every law on methods, for pytest: a case for each law and ground.

    grounds: what to learn, if tables with two classes and masks with three do not suit the method.
    """
    laws = [(algorithm.name, method_laws(algorithm, grounds)) for algorithm in algorithms]
    return _make_tests({f"{name}-{law}": check for name, laws in laws for law, check in laws.items()})


def model_contract(
    model: Model, *, inputs: tuple[int, ...] | None = None, classes: tuple[int, ...] = (2, 5)
) -> Callable[..., None]:
    """A test of every law on a network, for pytest. inputs: the shape of an example that suits it; None: try some."""
    return _make_tests(model_laws(model, inputs=inputs, classes=classes))


def translator_contract(translator: Translator) -> Callable[..., None]:
    """A test of every law on a translator, for pytest."""
    return _make_tests(translator_laws(translator))


def extractor_contract(extractor: Extracting, *, inputs: tuple[int, ...] = extractors.INPUTS) -> Callable[..., None]:
    """A test of every law on an extractor of features, for pytest. inputs: the shape of an image that suits it."""
    return _make_tests(extractor_laws(extractor, inputs=inputs))


def reader_contract(
    reader: Reader, images: AnyImages, *, labels: Labels | None = None, gland: GlandMask | None = None
) -> Callable[..., None]:
    """A test of every law on a reader whose files are there, for pytest. images: how a run would read what it writes.
    labels, gland: of a site, where what the reader describes needs them.
    """
    return _make_tests(reader_laws(reader, images, labels=labels, gland=gland))


def model_laws(
    model: Model, *, inputs: tuple[int, ...] | None = None, classes: tuple[int, ...] = (2, 5)
) -> dict[str, Check]:
    """Every law on a network, by name; without pytest."""
    kind: Kind = getattr(model, "kind", "classification")
    checks: dict[str, Check] = {STRICT: partial(settings_are_read_strictly_and_written_whole, model, MODELS)}
    shape = networks.accepted_inputs(model) if inputs is None else inputs
    for number in classes:
        task = Task(model, shape, number, kind)
        checks |= {f"{law.__name__}-{number}": partial(law, task) for law in networks.LAWS}
    return checks


def translator_laws(translator: Translator) -> dict[str, Check]:
    """Every law on a translator, by name; without pytest."""
    checks: dict[str, Check] = {STRICT: partial(settings_are_read_strictly_and_written_whole, translator, TRANSLATORS)}
    return checks | {law.__name__: partial(law, translator) for law in translators.LAWS}


def extractor_laws(extractor: Extracting, *, inputs: tuple[int, ...] = extractors.INPUTS) -> dict[str, Check]:
    """Every law on an extractor of features, by name; without pytest."""
    checks: dict[str, Check] = {STRICT: partial(settings_are_read_strictly_and_written_whole, extractor, EXTRACTORS)}
    return checks | {law.__name__: partial(law, extractor, inputs) for law in extractors.LAWS}


def reader_laws(
    reader: Reader, images: AnyImages, *, labels: Labels | None = None, gland: GlandMask | None = None
) -> dict[str, Check]:
    """Every law on a reader, by name; without pytest."""
    checks: dict[str, Check] = {STRICT: partial(settings_are_read_strictly_and_written_whole, reader, READERS)}
    case = Reading(reader, images, labels, gland)
    return checks | {law.__name__: partial(law, case) for law in readers.LAWS}


def method_laws(algorithm: Algorithm, grounds: Mapping[str, Ground] | None = None) -> dict[str, Check]:
    """Every law on a method, by name, on each ground that it accepts; without pytest."""
    checks: dict[str, Check] = {STRICT: partial(settings_are_read_strictly_and_written_whole, algorithm, ALGORITHMS)}
    offered = {"tables": TABLES, "masks": MASKS} if grounds is None else dict(grounds)
    works = {name: accepted_work(algorithm, ground.task) for name, ground in offered.items()}
    checks["it_accepts_some_network"] = partial(_check_accepts, algorithm, offered, works)
    for name, work in works.items():
        if work is not None:
            case = Case(algorithm, work, offered[name])
            checks |= {f"{law.__name__}-{name}": partial(law, case) for law in methods.LAWS}
    task = testbed.make_task()
    work = accepted_work(algorithm, task, private=True, works=(private.ADAM, private.SGD))
    if work is not None:
        checks |= {f"{law.__name__}-private": partial(_in_doubles, law, algorithm, work) for law in private.LAWS}
    return checks


def accepted_work(
    algorithm: Algorithm, task: Task, *, private: bool = False, works: tuple[Work, ...] = (ADAM, SGD)
) -> Work | None:
    """The first of these settings of local work of which the method does not complain; None: of none."""
    try:
        module = algorithm.network(task)
    except ValueError:  # it builds its networks for other tasks
        return None
    return next((work for work in works if not algorithm.complaints(module, work, private)), None)


def _check_accepts(algorithm: Algorithm, grounds: Mapping[str, Ground], works: Mapping[str, Work | None]) -> None:
    """Hold that the method accepts a network on at least one ground."""
    complaints: list[str] = []
    for name, ground in grounds.items():
        if works[name] is None:
            try:
                complaints += algorithm.complaints(algorithm.network(ground.task), SGD, False)
            except ValueError as error:
                complaints.append(str(error))
    hold(
        any(work is not None for work in works.values()),
        f"{algorithm.name} refuses every network of this contract ({'; '.join(complaints)}); give it settings for a"
        " network with one small layer before its head, or grounds of your own",
    )


def _in_doubles(law: Callable[[Algorithm, Work], None], algorithm: Algorithm, work: Work) -> None:
    """Check a law on private training with numbers of 64 bits."""
    with in_doubles():
        law(algorithm, work)


def _make_tests(checks: Mapping[str, Check]) -> Callable[..., None]:
    """A pytest function with one case for each check."""
    import pytest  # only where tests run

    @pytest.mark.parametrize("law", [pytest.param(check, id=name) for name, check in checks.items()])
    def test_contract(law: Check) -> None:
        law()

    made: Callable[..., None] = test_contract
    return made
