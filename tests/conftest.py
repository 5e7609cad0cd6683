"""Deterministic tests: one thread, seeded generators, hypothesis without deadlines. The default suite is a part of
`--thorough`. What is left to chance says so by `@pytest.mark.chance`.

By default hypothesis tests run a fifth of their examples, the same in every run (`derandomize`), and of a test marked
`repeats(most)`, whose cases try one mechanism again and again, about so many cases run. `pytest --thorough`, which is
`make test-all`, runs all examples and all cases, and also the tests marked `slow`.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

# Before numpy is imported, and for Python processes that tests start. Where as many tests run as there are processors,
# threads of BLAS wait for each other: singular values of a 200 x 1024 matrix took a hundred times as long on two.
os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np
import pytest
import torch
import yaml
from extremes import fixed_keys
from filelock import FileLock
from hypothesis import settings

from repeating import list_left_out

torch.set_num_threads(1)
settings.register_profile("house", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("house")

SHARE, LEAST = 5, 4  # the default suite tries one example in SHARE, but LEAST of them where a law has so many
LAW = "_hypothesis_internal_use_settings"  # what `@settings` writes on a law; there is no public name for it

LOOK_AT_PAGES = ("tests/evaluation/", "tests/browser/", "pages.py", "tests/golden/", "test_inversion_audit.py")
LOOK_AT_MAPS = ("tests/harmonize/", "tests/evaluation/", "test_points.py")
LIBRARIES = ("pydicom", "nibabel", "scipy.ndimage", "skimage.measure", "sklearn.linear_model", "matplotlib")
"""What hospitals import while they work: seconds."""
FIGURES = "CONSILIUM_TEST_FIGURES"  # in the environment while a run is made at whose figures a test looks

TESTS = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIUM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="all examples of every law, and the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    fixed_keys.fix_keys()
    if config.getoption("--thorough"):
        config.option.markexpr = ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a shell starts jobs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of Ctrl-C would wait for ever


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a file of tests draws when it is imported does not hang on the files before it."""
    if isinstance(collector, pytest.Module):
        seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Nor does what a fixture draws hang on those before it."""
    seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Nor does what a test draws hang on the tests before it."""
    seed_generators()


def seed_generators() -> None:
    """Seed the generators that a process has one of. Noise comes from the operating system, and stays by chance."""
    torch.default_generator.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reduce the examples of hypothesis tests and the cases of repeating ones, unless `--thorough` is given."""
    if config.getoption("--thorough"):
        return
    for item in list_left_out(items):
        item.add_marker(pytest.mark.slow)
    laws = {item.function for item in items if hasattr(getattr(item, "function", None), LAW)}
    for law in laws:
        full = getattr(law, LAW)
        setattr(law, LAW, settings(full, max_examples=fewer(full.max_examples)))


def looked_at() -> bool:
    """Whether figures are looked at, and so are drawn."""
    return FIGURES in os.environ or any(part in os.environ.get("PYTEST_CURRENT_TEST", "") for part in LOOK_AT_PAGES)


def fewer(examples: int) -> int:
    """The number of examples of a test in the default suite."""
    return max(min(LEAST, examples), examples // SHARE)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data, or a skip with the reason."""
    if not DATA.is_dir():
        pytest.skip(f"no real data at {DATA}: set CONSILIUM_DATA to run this test")
    return DATA


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether `--thorough` is given."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Gives the folder in which `pipelines.run` finished these settings: tiny.yaml, and its run below runs/.

    A run is made once, whatever tests and workers of pytest-xdist need it. Nobody may change it, but in a copy. Tests
    that look at figures ask for them (those in `LOOK_AT_PAGES` need not); the others take what is there.
    """
    from pipelines.run import main

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def finished(settings: Mapping[str, object] | str, *, figures: bool = False) -> Path:
        text = settings if isinstance(settings, str) else yaml.safe_dump(dict(settings), sort_keys=False)
        plain = shared / f"run-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        drawn = plain.with_name(f"{plain.name}-drawn")
        figures = figures or looked_at()
        folder = drawn if figures or drawn.with_suffix(".done").exists() else plain
        with FileLock(f"{folder}.lock"), pytest.MonkeyPatch.context() as patch:
            if not folder.with_suffix(".done").exists():
                folder.mkdir(exist_ok=True)
                patch.chdir(folder)
                if figures:
                    patch.setenv(FIGURES, "1")
                (folder / "tiny.yaml").write_text(text)
                assert main(["tiny.yaml"]) == 0
                folder.with_suffix(".done").touch()
        return folder

    return finished


@pytest.fixture(scope="session", autouse=True)
def _phantoms_are_written_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hospitals and tests with equal phantoms get copies of files that were written once: they follow from the settings
    alone. Where only numbers of patients differ, the studies are made once. Tests of phantoms themselves write anew.
    """
    if "pipelines.hospital.files" not in sys.modules:  # no test of this session has a hospital
        yield
        return
    from pipelines.phantom import files  # a hospital imports `write` from there when it writes

    kept, write, make = tmp_path_factory.mktemp("phantoms"), files.write, files.make_study
    studies = dict[Any, Any]()

    def made_once(source: Any, patient: int) -> Any:
        if "phantom" in os.environ.get("PYTEST_CURRENT_TEST", ""):
            return make(source, patient)
        known = (replace(source, patients=1, damaged=0), patient, files.find_defect(source, patient))
        if known not in studies:
            studies[known] = make(source, patient)
        return studies[known]

    def copied(source: object, folder: Path) -> None:
        if folder.exists():  # it may be refused
            return write(source, folder)
        known = kept / hashlib.sha256(repr(source).encode()).hexdigest()
        if not known.exists():
            write(source, known)
        shutil.copytree(known, folder, copy_function=shutil.copyfile)

    ours = [one for one in [*sys.modules.values()] if str(getattr(one, "__file__", "")).startswith(str(TESTS))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "make_study", made_once)
        for module in [files, *(one for one in ours if "phantom" not in str(one.__file__))]:
            replace_everywhere(patch, [module], write, copied)
        yield


def replace_everywhere(patch: pytest.MonkeyPatch, modules: Iterable[object], old: object, new: object) -> None:
    """In each module each name for the one is a name for the other."""
    for module in modules:
        for name in [name for name, value in vars(module).items() if value is old]:
            patch.setattr(module, name, new)


@pytest.fixture(scope="session", autouse=True)
def _public_pictures_are_drawn_once() -> Iterator[None]:
    """They follow from a prior, their classes, a size and a seed, and so do the view of them and their radiomics, which
    scale features: two thirds of a synthesis in a test. Deformed copies follow from images. Tests of harmonization
    draw anew.
    """
    if "harmonize.public_features" not in sys.modules:
        yield
        return
    from federation.features.radiomics import Radiomics
    from harmonize import elastic, prior, public_features

    draw, view = prior.draw_pictures, public_features.make_view
    drawn, views, measured = dict[Any, torch.Tensor](), dict[Any, Any](), dict[Any, Any]()
    deform, deformed = elastic.make_deformed_copies, dict[Any, torch.Tensor]()

    def draw_once(prior_: Any, y: torch.Tensor, inputs: Any, seed: int) -> torch.Tensor:
        known = (prior_.name, tuple(y.tolist()), tuple(inputs), seed)
        if known not in drawn:
            drawn[known] = draw(prior_, y, inputs, seed)
        return drawn[known].clone()

    def view_once(prior_: Any, inputs: Any, *given: Any, seed: int) -> Any:
        known = (prior_.name, tuple(inputs), *given, seed)
        if known not in views:
            views[known] = view(prior_, inputs, *given, seed=seed)
        return views[known]

    def deform_once(images: torch.Tensor, copies: int, **options: Any) -> torch.Tensor:
        bits = images.detach().cpu().contiguous().numpy().tobytes()
        known = (images.shape, images.device, hashlib.sha256(bits).digest(), copies, *options.items())
        if known not in deformed:
            deformed[known] = deform(images, copies, **options)
        return deformed[known].clone()

    def measure_once(extractor: Any, images: torch.Tensor) -> Any:
        if not isinstance(extractor, Radiomics):
            return measure(extractor, images)
        known = (extractor, images.shape, hashlib.sha256(images.numpy().tobytes()).digest())
        if known not in measured:
            measured[known] = measure(extractor, images)
        return measured[known].copy()

    places = [
        one for one in [*sys.modules.values()] if (getattr(one, "__file__", None) or "").startswith(str(TESTS.parent))
    ]
    places = [one for one in places if "tests/harmonize" not in str(one.__file__)]
    with pytest.MonkeyPatch.context() as patch:
        replace_everywhere(patch, places, draw, draw_once)
        replace_everywhere(patch, places, view, view_once)
        replace_everywhere(patch, places, deform, deform_once)
        if scaling := sys.modules.get("pipelines.coordinator.public_features"):
            measure = scaling.extract_values
            patch.setattr(scaling, "extract_values", measure_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _only_pages_that_are_looked_at_have_images(thorough: bool) -> Iterator[None]:
    """By default images of patients are drawn for the tests of pages (`LOOK_AT_PAGES`), elsewhere none."""
    from evaluation import tiles

    real_layers = tiles.split_layers

    def drawn_layers(*given: Any) -> Any:
        return real_layers(*given) if looked_at() else tiles.Layers(np.zeros((1, 1), np.uint8), None, ())

    evaluating = [] if thorough else [sys.modules[name] for name in [*sys.modules] if name.startswith("evaluation.")]
    with pytest.MonkeyPatch.context() as patch:
        replace_everywhere(patch, evaluating, real_layers, drawn_layers)
        yield


@pytest.fixture(scope="session", autouse=True)
def _only_maps_that_are_looked_at_have_all_their_steps(thorough: bool) -> Iterator[None]:
    """By default t-SNE takes a few steps, but for the tests of maps (`LOOK_AT_MAPS`): a tenth of a harmonized run."""
    if thorough or "harmonize.embedding" not in sys.modules:
        yield
        return
    import openTSNE

    real = openTSNE.TSNE

    def hurried(**settings: Any) -> Any:
        slow = any(part in os.environ.get("PYTEST_CURRENT_TEST", "") for part in LOOK_AT_MAPS)
        return real(**settings, **({} if slow else {"early_exaggeration_iter": 10, "n_iter": 20}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openTSNE, "TSNE", hurried)
        yield


@pytest.fixture(scope="session", autouse=True)
def _audits_of_runs_have_few_steps(thorough: bool) -> Iterator[None]:
    """By default a run's audit with canaries takes a few steps: it was a third of a small private run. Tests of audits
    call `audit_mechanism` themselves, and have all.
    """
    if thorough or "pipelines.coordinator.stages.audit" not in sys.modules:
        yield
        return
    from pipelines.coordinator.stages import audit

    real = audit.audit_mechanism

    def hurried(*given: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(audit, "STEPS", 3)
            return real(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "audit_mechanism", hurried)
        yield


@pytest.fixture(scope="session", autouse=True)
def _judges_of_runs_divide_once(thorough: bool) -> Iterator[None]:
    """By default the judge of a run's translation divides patients once, and not five times, for its classifier: a
    tenth of a harmonized run. Tests of the judge call `measure_drift` themselves.
    """
    if thorough or "harmonize.quality" not in sys.modules:
        yield
        return
    from harmonize import drift, quality

    real = quality.measure_drift

    def hurried(*given: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if not any(part in os.environ.get("PYTEST_CURRENT_TEST", "") for part in ("tests/harmonize/", "golden/")):
                patch.setattr(drift, "REPEATS", 1)
            return real(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "measure_drift", hurried)
        yield


@pytest.fixture(scope="session", autouse=True)
def _new_processes_have_hospitals() -> Iterator[None]:
    """The server of which new processes are forked starts once, for whatever test comes first. It imports what all of
    them need: otherwise each new hospital of a later test imports the whole program.
    """
    from multiprocessing import forkserver

    real = forkserver.set_forkserver_preload
    rooms = [name for name in ("pipelines.hospital.simulated", "pipelines.coordinator.ahead") if name in sys.modules]
    heavy = [*rooms, *(LIBRARIES if rooms else ())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "set_forkserver_preload", lambda names: real(list(dict.fromkeys([*names, *heavy]))))
        yield


@pytest.fixture(autouse=True)
def _shared_state_is_put_back() -> Iterator[None]:
    """What tests share is after each test as it was before, so that their order does not matter: the current folder,
    torch's threads and default type, and variables of the environment (those that an import adds may stay).
    """
    folder, threads, kind = os.getcwd(), torch.get_num_threads(), torch.get_default_dtype()
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    yield
    os.chdir(folder)
    torch.set_num_threads(threads)
    torch.set_default_dtype(kind)
    os.environ.update(variables)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Tensors that a test makes are in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
