"""Checks of methods: their networks, sites' overrides, and sites' policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from federation.algorithm import find_class_needs, find_work_problems
from federation.descent import Work
from federation.models.monai import Unmade
from federation.models.own import Own
from federation.rehearsal import initial_parameters, rehearse_reply
from federation.sizes import TooLarge
from federation.task import Task
from federation.verdict import find_reply_problem
from personalize import AnyAlgorithm
from personalize.at_home import list_policy_names, method_itself
from personalize.prompts import no_prompt
from pipelines.data.images import pixel_spacing
from pipelines.settings.foreign import describe_foreign_failure
from pipelines.settings.recipients import list_needed_recipients
from pipelines.settings.run_settings import RunSettings, build_network, is_buildable, list_works, try_network
from privacy.release.policy import OUTSIDE
from privacy.settings_error import Path, Problem

METHOD_INPUTS: tuple[Path, ...] = (
    ("model",),
    *(("train", name) for name in ("work", "method_work", "method_model")),
)
"""What a method's network and work follow from, in addition to its own settings."""
WHO_TRAINS: tuple[Path, ...] = (("outside",),)
"""What says which hospitals take part in training."""


def problems(run: RunSettings) -> list[Problem]:
    """All conflicts between methods, sites and policies."""
    found_problems = [*_pooling_problems(run), *_network_problems(run), *_recipient_problems(run)]
    for label, method in run.train.methods.items():
        if method_itself(method).name == "fedfomo" and run.split.validation == 0:
            text = "fedfomo weighs models by validation patients, and split.validation is 0; give validation patients, "
            found_problems.append(Problem(("train", "methods", label), f"{text}or choose another method"))
    for label, site, work in list_works(run):
        found_problems += _work_problems(run, label, site, work)
        if work.randomize and run.images.kind == "tensors":
            text = f"{work.randomize:g} disturbs images of a known range, and that of tensors is unknown; say 0"
            found_problems.append(Problem(("train", "work", "randomize"), text))
        if work.transform is not None and run.images.kind != "tensors":
            text = f"{work.transform.function} gives views of examples that are tensors, and these are "
            found_problems.append(Problem(("train", "work", "transform"), f"{text}{run.images.kind}; say augment"))
        elif work.transform is not None and work.transform.missing:
            found_problems.append(Problem(("train", "work", "transform"), work.transform.missing))
        if work.channels_last and len(run.images.inputs) != 3:
            text = f"true is for images (channels, height, width), and these are {list(run.images.inputs)}; say false"
            found_problems.append(Problem(("train", "work", "channels_last"), text))
    return list(dict.fromkeys(found_problems))


def _work_problems(run: RunSettings, label: str, site: str, work: Work) -> list[Problem]:
    """Problems of local work that a method or the task cannot have."""
    try:
        method, task = run.method(label, site), run.task_of(label, site)
    except ValueError:
        return []  # other checks report it
    wrong = find_work_problems(method, task, work, pixel_spacing(run.images_of(site)))
    return [problem.within("train", "work") for problem in wrong]


def _pooling_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of methods that pool images in a run or at a site that does not allow it."""
    central = [label for label, method in run.train.methods.items() if method.name == "central"]
    if central and run.pooling == "refused":
        text = "central training pools images; say pooling: allowed, or remove it"
        yield Problem(("train", "methods", central[0]), text)
    for name, site in run.sites.items():
        if not site.policy.pooling and name not in run.outside:
            for label in central:
                text = f"train.methods.{label} pools images, and this site's policy does not allow it"
                yield Problem(("sites", name, "policy", "pooling"), text, needs=WHO_TRAINS)


def _network_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of networks that cannot be built or cannot take the images, and of methods with a site's overrides."""
    for label in run.train.methods:
        try:
            task = run.task_of(label)
        except ValueError as error:
            yield Problem(("task", "kind"), f"{error} (method {label})")
            continue
        method = run.train.methods[label]
        if wrong := no_prompt(method, task) or find_class_needs(method, task):
            yield from (Problem(("train", "methods", label), text) for text in wrong)
            continue
        if not is_buildable(task):
            continue  # `checks.features` reports what is wrong with its file
        try:
            needs_two = try_network(task)
        except (RuntimeError, OverflowError, ValueError, MemoryError) as error:
            if isinstance(task.model, Own) or isinstance(
                error, Unmade | TooLarge
            ):  # their messages say what cannot be done
                has_its_network = label in run.train.method_model
                yield Problem(("train", "method_model", label) if has_its_network else ("model",), f"{error}")
                continue
            yield Problem(
                ("images",),
                f"the network cannot take examples of shape {list(task.inputs)}; give larger ones, a smaller network, "
                f"or one for such examples: mlp for features, cnn or cam for images ({error})",
            )
            continue
        if needs_two and any(work.batch == 1 for name, _, work in list_works(run) if name == label):
            text = (
                "1, and a batch norm gets one value a channel of each example, which has no variance; say 2 or more, "
            )
            yield Problem(("train", "work", "batch"), f"{text}give larger images, or norm: group")
        for site in run.sites:
            yield from _site_form_problems(run, label, site, run.task_of(label, site))


def _site_form_problems(run: RunSettings, label: str, site: str, task: Task) -> list[Problem]:
    """Problems of a method with a site's overrides, also if the coordinator could not read its replies."""
    try:
        common_method, site_method, work = run.train.methods[label], run.method(label, site), run.work(label, site)
    except ValueError:
        return []  # `checks.sites` reports it
    where = ("train", "methods", label) if site_method == common_method else ("sites", site, "methods", label)
    if list_policy_names(site_method) != list_policy_names(common_method):
        named = (*where, "name") if site_method.name != common_method.name else (*where, "of", "name")
        own, common = (list_policy_names(method)[-1] for method in (site_method, common_method))
        return [Problem(named, f"{own}, but all sites run one method, {common} here; remove it")]
    try:
        complaints = site_method.complaints(build_network(site_method, task), work, run.privacy != "none")
        form_problems = [Problem(where, sentence, needs=METHOD_INPUTS) for sentence in complaints]
    except TooLarge as error:
        return [Problem(where, f"{error}")]
    except Exception as error:
        if (reason := describe_foreign_failure(error, site_method, task.model)) is None:
            raise
        return [Problem(where, reason)]
    if site_method == common_method or form_problems:
        return form_problems
    if not _have_same_replies(site_method, common_method, task, work):
        text = "replies would have other tensors or facts than those of the other sites, and each would be refused as "
        return [Problem(where, f"{text}malformed; change only what leaves the replies as they are")]
    if _list_shapes(site_method, task) != _list_shapes(common_method, task):
        text = "its network would not fit the start that all sites are sent: parameters have other names or shapes; "
        return [Problem(where, f"{text}change only what leaves the network as it is")]
    return []


def _list_shapes(method: AnyAlgorithm, task: Task) -> dict[str, tuple[int, ...]]:
    """The shapes of a network's parameters and buffers, by name."""
    return {name: (*value.shape,) for name, value in build_network(method, task).state_dict().items()}


def _have_same_replies(method: AnyAlgorithm, other_method: AnyAlgorithm, task: Task, work: Work) -> bool:
    """Whether the replies of a method with two sets of overrides have the same names, shapes and facts."""
    try:
        replies = [
            rehearse_reply(form, task, work, initial_parameters(form, task, seed=0)) for form in (method, other_method)
        ]
    except (RuntimeError, ValueError):
        return False
    return find_reply_problem(replace(replies[0], facts={**replies[0].facts, "loss": None, "n": 0}), replies[1]) is None


def _recipient_problems(run: RunSettings) -> Iterator[Problem]:
    """Recipients besides the coordinator that a run needs, and that a site's policy does not name."""
    for name, site in run.sites.items():
        for recipient, why in list_needed_recipients(run, name) if name not in run.outside else ():
            if recipient not in site.policy.recipients:
                what = "route" if recipient == OUTSIDE else "the method"
                remedy = f"say recipients: [coordinator, {recipient}], or leave {what} out"
                text = f"{why}, and its policy does not allow that; {remedy}"
                yield Problem(("sites", name, "policy", "recipients"), text, needs=WHO_TRAINS)
