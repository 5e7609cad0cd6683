"""A site's own policy: which requests it answers, to whom, and how much privacy budget they may cost a patient.

The coordinator cannot override it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, TypeAlias, get_args

from privacy.dp.events import Declaration, Declared, Event, list_leaves
from privacy.settings_error import Problem, refuse, unmet

RequestName: TypeAlias = Literal[
    "survey",
    "fingerprint",
    "moments",
    "ingest",
    "score",
    "synthesize",
    "sample",
    "translate",
    "augment",
    "extract",
    "introduce",
    "train",
    "finish",
    "figures",
    "export",
    "evaluate",
    "audit",
    "pool",
    "route",
    "benchmark",
    "compare",
    "track",
    "report",
    "holds",
]
"""What a coordinator may ask of a hospital; `pipelines/requests` declares each."""
REQUESTS: tuple[RequestName, ...] = get_args(RequestName)
UNIT = re.compile(r"(?=.{1,40}$)[A-Za-z]+( [A-Za-z]+)*")
"""Allowed names of the unit of privacy (as `patient`)."""
PACKAGE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
"""A package's name in the form in which PyPI compares names (PEP 503)."""
DIGEST = re.compile("[0-9a-f]{64}")
KEY = re.compile(r"[0-9a-f]{64}")
"""A public key of Ed25519, as `consilium sign` prints it."""
KEY_BYTES = 12
"""Different bytes that a key has at least: 0...0 is a point under which anybody can sign, and chance repeats less."""
MOST_DELTA = 1e-3
"""The largest delta that settings may have, for any number of patients. With probability delta there is no guarantee: a
mechanism that publishes each record with this probability is (0, delta)-private, so delta near 1/n protects nobody
(Dwork and Roth 2014, section 2.3). Each hospital requires less, by its number of patients (`largest_delta`).
"""
FLOOR = 11
"""Training patients below which a hospital with a budget trains nothing, unless its policy says otherwise: cells of 1
to 10 people are what official health statistics suppress (CMS cell size suppression policy; EMA policy 0070 asks for a
risk of at most 0.09 = 1/11)."""
RELEASE_SHARE = 0.5
"""The part of a budget's epsilon that one reply may cost, unless the policy says otherwise. Epsilons of Gaussian noise
add up slower than one by one, so what a half leaves pays for about two more such replies: one request, whatever it
asks, cannot end a hospital's part."""
PUBLIC = frozenset({"counts", "fingerprint"})
"""Facts that a hospital may declare public."""
RECIPIENTS = COORDINATOR, SITES, OUTSIDE, TRACKING = "coordinator", "sites", "outside", "tracking"
"""Who receives what a reply holds: only the coordinator; through it also other sites, unchanged or in a mixture; or
external sites; or a tracking server, to which the coordinator copies figures that it has."""


def delta_problems(delta: float) -> list[Problem]:
    """What is wrong with a delta that settings name."""
    if 0 < delta <= MOST_DELTA:
        return []
    text = f"must be in (0, {MOST_DELTA:g}], found {delta:g}; say well below 1 / patients, as 1e-5"
    return [Problem(("delta",), text)]


def plugin_problems(plugins: Mapping[str, str]) -> list[Problem]:
    """What is wrong with permitted packages. plugins: name -> digest."""
    problems = []
    for name, digest in plugins.items():
        if not PACKAGE.fullmatch(name):
            text = "is no package's name in lower case with - between words, as consilium plugins prints it"
            problems.append(Problem(("plugins", name), text))
        if not DIGEST.fullmatch(digest):
            text = f"must be a digest of 64 hexadecimal digits, as consilium plugins prints it, found {digest[:70]!r}"
            problems.append(Problem(("plugins", name), text))
    return problems


def largest_delta(patients: int) -> float:
    """The largest delta at which a hospital with so many patients gives a guarantee: 1 / (10 patients).

    Delta must be far below 1 / patients (Ponomareva et al. 2023, section 5.2, take n^-1.1 or less): here at most one
    such hospital in ten could lose a whole record to the failure that delta allows for.
    """
    return 1 / (10 * max(1, patients))


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The (epsilon, delta) that all releases together may cost a patient, over the life of the hospital's ledger."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        refuse(unmet(self, epsilon=(0 < self.epsilon < math.inf, "> 0 and finite")) + delta_problems(self.delta))


@dataclass(frozen=True, kw_only=True)
class Most:
    """The most epsilon that one reply, and all replies of one run, may cost a patient, at the budget's delta.

    release: null = half of the budget (`RELEASE_SHARE`). run: of all requests of runs of one name; null = the budget.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    release: float | None = None
    run: float | None = None

    def __post_init__(self) -> None:
        caps = {"release": self.release, "run": self.run}
        wrong = {name: cap for name, cap in caps.items() if cap is not None and not 0 < cap < math.inf}
        refuse([Problem((name,), f"must be > 0 and finite, found {cap}") for name, cap in wrong.items()])


@dataclass(frozen=True, kw_only=True)
class SumsOnly:
    """Parameters leave only in sums of which the coordinator sees no part (`privacy.secure_sum`).

    hospitals: the fewest in a sum. colluding: how many other hospitals of a sum may work together with the coordinator,
    at most: the budget counts noise that hospitals share as that of the rest. null = all of them may, so that only this
    hospital's own noise counts. signers: name of another hospital -> the key that verifies its signatures, as its
    check before it joins prints it; if there are any, all of a sum must be named. trust_coordinator: whether it is
    trusted to hand on the hospitals' keys unchanged and to invent no hospitals; `colluding` counts on that where it has
    no `signers`.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    hospitals: int = 3
    colluding: int | None = None
    signers: Mapping[str, str] = field(default_factory=dict)
    trust_coordinator: bool = False

    def __post_init__(self) -> None:
        most = self.hospitals - 2
        wrong = [
            Problem(("signers", name), f"must be the 64 digits 0-9 a-f of a public key, found {key[:70]!r}")
            for name, key in self.signers.items()
            if not KEY.fullmatch(key) or len(set(bytes.fromhex(key))) < KEY_BYTES
        ]
        if len(set(self.signers.values())) < len(self.signers):
            wrong.append(Problem(("signers",), "one key for two hospitals, so that one could pass for both"))
        if self.colluding is not None and not self.signers and not self.trust_coordinator:
            text = (
                f"{self.colluding} counts on noise of hospitals that a coordinator could invent; name their signing "
                "keys (signers), or say trust_coordinator: true"
            )
            wrong.append(Problem(("colluding",), text))
        refuse(
            wrong
            + unmet(
                self,
                hospitals=(2 <= self.hospitals <= 10**4, "in [2, 10000]"),
                colluding=(self.colluding is None or 0 <= self.colluding <= max(0, most), f"in [0, {most}] or null"),
            )
        )


class Cap(NamedTuple):
    """The most epsilon, and the line of the policy that says so."""

    epsilon: float
    line: str


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site answers.

    requests: the requests that it answers at all. algorithms: the methods that it trains with; null = any. recipients:
    who may receive its replies: `coordinator`; `sites` = methods may send this site's tensors to other sites, not only
    averaged with theirs (APPLE's cores); `outside` = its models may be given to external sites (test-time routing);
    `tracking` = figures that it released may be copied to a tracking server (`track:`).
    pooling: whether its images may leave, for the central baseline or as shared images (`synthesis: real`). max_bytes:
    the largest reply. budget: the most that a patient may be charged; null = no limit and no guarantee. require:
    `privacy` = nothing that depends on patients leaves without a finite ε; it needs a budget, because noise of any size
    has a finite ε. most: caps within the budget (`Most`). public: facts that
    the hospital declares public and therefore outside any guarantee; null = counts if there is no guarantee, else
    nothing: with a budget, counts then leave once, with noise that is charged. min_patients: the fewest training
    patients, by released counts, on which a hospital with a budget trains; null = 11 (`FLOOR`), 1 for simulated
    patients. max_failures: with a guarantee, how many failure codes may leave before all requests are refused until a
    person has looked, because each can reveal one bit about a patient. trusted_models: name of a signer -> public key:
    whose signed models this hospital evaluates (`privacy.release.signature`). max_model_bytes: the largest of them.
    unit: what a patient is called in the statement.
    plugins: installed packages whose methods, networks, translators, extractors and readers may run here: name ->
    digest, as `consilium plugins` prints both; none by default.
    secure_sum: `SumsOnly`; null = parameters may also leave alone.
    delta: at which every ε is computed if there is no budget. spend_again: False = what patients paid for once is never
    answered anew under another name, even if the coordinator says `--spend` or `--fresh`.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    requests: tuple[str, ...] = tuple(name for name in REQUESTS if name != "pool")
    algorithms: tuple[str, ...] | None = None
    recipients: tuple[str, ...] = (COORDINATOR,)
    pooling: bool = False
    max_bytes: int = 2**30
    budget: Budget | None = None
    most: Most | None = None
    public: tuple[str, ...] | None = None
    max_failures: int = 20
    require: Literal["privacy"] | None = None
    unit: str = "patient"
    delta: float = 1e-5
    min_patients: int | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    trusted_models: Mapping[str, str] = field(default_factory=dict)
    max_model_bytes: int = 2**28
    spend_again: bool = True
    secure_sum: SumsOnly | None = None

    def __post_init__(self) -> None:
        problems = [
            Problem((field,), f"unknown {', '.join(unknown)}; known {known}")
            for field, unknown, known in (
                ("requests", sorted(set(self.requests) - set(REQUESTS)), f"are {', '.join(REQUESTS)}"),
                ("public", sorted(set(self.public or ()) - PUBLIC), f"are {', '.join(sorted(PUBLIC))}"),
                ("recipients", sorted(set(self.recipients) - set(RECIPIENTS)), f"are {', '.join(RECIPIENTS)}"),
            )
            if unknown
        ]
        if self.recipients and COORDINATOR not in self.recipients:
            text = f"{', '.join(sorted(self.recipients))} get everything through the coordinator; say {COORDINATOR} too"
            problems.append(Problem(("recipients",), text))
        problems += unmet(
            self,
            max_bytes=(self.max_bytes >= 1, "at least 1"),
            max_failures=(self.max_failures >= 0, "at least 0"),
            max_model_bytes=(self.max_model_bytes >= 1, "at least 1"),
        )
        problems += [
            Problem(("trusted_models", name), f"must be the 64 digits 0-9 a-f of a public key, found {key[:70]!r}")
            for name, key in self.trusted_models.items()
            if not KEY.fullmatch(key) or len(set(bytes.fromhex(key))) < KEY_BYTES
        ]
        if self.promises and self.pooling:
            text = "images leave without any guarantee, and a budget promises one; say false"
            problems.append(Problem(("pooling",), text))
        problems += self._cap_problems()
        if not UNIT.fullmatch(self.unit):
            text = f"must be words of letters (at most 40 characters), found {self.unit[:60]!r}"
            problems.append(Problem(("unit",), text))
        problems += delta_problems(self.delta)
        if self.min_patients is not None and (self.min_patients < 1 or not self.promises):
            rule = "at least 1" if self.min_patients < 1 else "left out without policy.budget, whose floor it is"
            problems.append(Problem(("min_patients",), f"must be {rule}, found {self.min_patients}"))
        problems += plugin_problems(self.plugins)
        refuse(problems)

    @property
    def promises(self) -> bool:
        """Whether patients have a guarantee."""
        return self.budget is not None

    @property
    def colluding(self) -> int | None:
        """How many other hospitals of a sum may work together with the coordinator; None = all of them."""
        return None if self.secure_sum is None else self.secure_sum.colluding

    @property
    def caps(self) -> dict[str, Cap]:
        """The most that one `release`, one `run`, and all in `total` may cost; empty without a budget."""
        if self.budget is None:
            return {}
        most, total = self.most or Most(), self.budget.epsilon
        half = Cap(min(RELEASE_SHARE * total, most.run or total), "half of the budget, without most: {release: ...}")
        return {
            "release": half if most.release is None else Cap(most.release, "most: {release: ...}"),
            "run": Cap(total if most.run is None else most.run, "most: {run: ...}"),
            "total": Cap(total, "budget: {epsilon: ...}"),
        }

    def _cap_problems(self) -> list[Problem]:
        """Problems of settings that need a budget, and of a cap that is above the next larger one."""
        line = "add budget: {epsilon: 8.0, delta: 1.0e-5}"
        if self.budget is None:
            needs = {
                "require": (self.require, "privacy alone limits nothing, for noise of any size has a finite epsilon"),
                "most": (self.most, "caps one release and one run, and runs are as many as a coordinator likes"),
            }
            return [Problem((name,), f"{why}; {line}") for name, (value, why) in needs.items() if value is not None]
        caps = self.caps
        wide = [(a, b) for a, b in (("release", "run"), ("run", "total")) if caps[a].epsilon > caps[b].epsilon]
        return [
            Problem(("most", a), f"must be at most {caps[b].epsilon:g} ({caps[b].line}), found {caps[a].epsilon:g}")
            for a, b in wide
        ]

    def allows(self, request: str) -> bool:
        """Whether the site answers this request (`pool` only by the setting `pooling`)."""
        return self.pooling if request == "pool" else request in self.requests

    def declares(self, what: Declaration) -> bool:
        """Whether such facts may leave without noise. A failure always may: a missing reply would reveal it too."""
        if what == "failure":
            return True
        return not self.promises if self.public is None else what in self.public


def list_declarations(event: Event) -> set[Declaration]:
    """The facts that an event releases without noise."""
    return {part.what for part in list_leaves(event) if isinstance(part, Declared)}
