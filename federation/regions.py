"""Regional coordinators: each adds up what its hospitals send, and passes one message up.

Replies that are hidden in sums (`federation.summing`) are whole numbers modulo 2^64, whose sum hangs on no order and no
grouping. So a coordinator that adds up the sums of regions has the sum over all hospitals, bit for bit. What a hospital
is asked, does, sends and books is the same as without regions: it cannot tell who carries its messages.

What a region sees depends on among whom masks cancel:

* `all`: among all hospitals of the run. What a region adds up is as random as each reply, and says nothing.
* `region`: among the hospitals of a region. Each hospital agrees on secrets with these alone, a tenth of the work where
  there are ten regions, and the region and the coordinator see the sum over the region. A policy that asks for sums
  over more hospitals than a region has refuses it; so does a hospital that shares noise with all others.

Validation losses are readable in both, as they are without regions. A region that adds up wrongly, or leaves hospitals
out, spoils the sum, as a coordinator could. All that is not hidden in sums, as introductions, is handed on as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from federation.engine import Answers, Engine, Worker, listen_for_answers, report_answer
from federation.summing import KEYS, MASKED
from federation.verdict import MALFORMED
from privacy.message import Call, Json, Message, as_list, as_mapping, number_of
from privacy.secure_sum import add_words

Masks: TypeAlias = Literal["all", "region"]
GROUPS, DEADLINE, REPLIES, MISSING, SUMMED = "groups", "deadline_s", "replies", "missing", "summed"
LARGEST = 2**62
"""A sum of regions beyond it could have wrapped."""


def make_region(engine: Engine) -> Worker:
    """A regional coordinator, as its coordinator calls it: a worker that asks the hospitals behind this engine."""

    def answer(call: Call, message: Message) -> Message:
        deadline = number_of(message.facts, DEADLINE) if message.facts.get(DEADLINE) is not None else None
        return _pack_answers(engine.ask(call, _unpack_questions(message), deadline_s=deadline))

    return answer


class Regions:
    """The coordinator's engine: it asks regions, which ask their hospitals. engine: to the regions. members: region ->
    its hospitals; each hospital is in one. masks: see above.
    """

    def __init__(self, engine: Engine, members: Mapping[str, tuple[str, ...]], *, masks: Masks = "all") -> None:
        self._engine, self._masks = engine, masks
        self._members = {region: tuple(sorted(sites)) for region, sites in sorted(members.items())}
        self._region_of = {site: region for region, sites in self._members.items() for site in sites}
        if len(self._region_of) < sum(map(len, self._members.values())):
            raise ValueError("a hospital is in two regions; each belongs to one")

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the hospitals, sorted."""
        return tuple(sorted(self._region_of))

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`. A region that does not answer is missing with each of its hospitals, with its code. The sum
        of a region's words stands in the reply of its first hospital, and zeros in those of the others.
        """
        replies = dict[str, Message]()
        missing = {site: "unknown_site" for site in messages if site not in self._region_of}
        questions = dict[str, Message]()
        for region, sites in self._members.items():
            group = {site: self._choose_keys(messages[site], sites) for site in sites if site in messages}
            if group:
                questions[region] = _pack_questions(group, deadline_s)
        with listen_for_answers(lambda region: None):  # whoever listens hears of hospitals
            answers = self._engine.ask(call, questions)
        for region in questions:
            region_sites = [site for site in self._members[region] if site in messages]
            if (reply := answers.replies.get(region)) is None:
                missing |= dict.fromkeys(region_sites, answers.missing.get(region, "failed"))
                continue
            answered, lost = _unpack_answers(
                reply, region_sites, LARGEST // len(questions) if self._masks == "region" else 0
            )
            replies |= answered
            missing |= lost
        for site in messages:
            report_answer(site)
        return Answers(dict(sorted(replies.items())), missing)

    def _choose_keys(self, message: Message, sites: tuple[str, ...]) -> Message:
        """The question with the keys among whose hospitals masks cancel."""
        keys = as_mapping(message.facts.get(KEYS))
        if self._masks == "all" or not keys:
            return message
        return Message(message.tensors, {**message.facts, KEYS: {site: keys[site] for site in sites if site in keys}})


def _pack_questions(messages: Mapping[str, Message], deadline_s: float | None) -> Message:
    """The questions to hospitals as one message, in which equal ones stand once."""
    groups = list[tuple[Message, list[Json]]]()
    for site, message in messages.items():
        for other, sites in groups:
            if message.tensors is other.tensors and message.facts == other.facts:
                sites.append(site)
                break
        else:
            groups.append((message, [site]))
    tensors = {f"{k}/{name}": value for k, (each, _) in enumerate(groups) for name, value in each.tensors.items()}
    facts: list[Json] = [{"sites": sites, "facts": dict(each.facts)} for each, sites in groups]
    return Message(tensors, {GROUPS: facts, DEADLINE: deadline_s})


def _unpack_questions(message: Message) -> dict[str, Message]:
    """Hospital -> its question."""
    parts = _split_tensors(message)
    questions = dict[str, Message]()
    for k, group in enumerate(map(as_mapping, as_list(message.facts[GROUPS]))):
        question = Message(parts.get(str(k), {}), as_mapping(group["facts"]))
        questions |= {str(site): question for site in as_list(group["sites"])}
    return questions


def _pack_answers(answers: Answers) -> Message:
    """The answers of hospitals as one message, in which words are added up. Who sends more words than most, or fewer,
    is malformed.
    """
    words, tensors, missing = dict[str, torch.Tensor](), dict[str, torch.Tensor](), dict[str, Json](answers.missing)
    for site, reply in answers.replies.items():
        if set(reply.tensors) != {MASKED}:
            tensors |= {f"{site}/{name}": value for name, value in reply.tensors.items()}
        elif reply.tensors[MASKED].dtype == torch.int64 and reply.tensors[MASKED].dim() == 1:
            words[site] = reply.tensors[MASKED]
        else:
            missing[site] = MALFORMED
    lengths = Counter(len(each) for each in words.values()).most_common(1)
    for site in [site for site, each in words.items() if len(each) != lengths[0][0]]:
        missing[site] = MALFORMED
        del words[site]
    total = {MASKED: add_words([*words.values()])} if words else {}
    facts: dict[str, Json] = {site: dict(r.facts) for site, r in answers.replies.items() if site not in missing}
    return Message({**total, **tensors}, {REPLIES: facts, MISSING: missing, SUMMED: [*sorted(words)]})


def _unpack_answers(message: Message, sites: Sequence[str], largest: int) -> tuple[dict[str, Message], dict[str, str]]:
    """The replies of hospitals, and codes of those that are missing. largest: number in a readable sum; 0 = it is
    masked.
    """
    facts, codes = as_mapping(message.facts.get(REPLIES)), as_mapping(message.facts.get(MISSING))
    parts, summed = _split_tensors(message), [str(site) for site in as_list(message.facts.get(SUMMED))]
    replies, missing = dict[str, Message](), dict[str, str]()
    words = message.tensors.get(MASKED)
    is_too_large = largest > 0 and words is not None and not bool(((words < largest) & (words > -largest)).all())
    for site in sites:
        if site not in facts or (site in summed and (words is None or is_too_large)):
            missing[site] = str(codes.get(site, MALFORMED))
        elif site in summed and words is not None:
            part = words if site == summed[0] else torch.zeros(1, dtype=words.dtype).expand(len(words))
            replies[site] = Message({MASKED: part}, as_mapping(facts[site]))
        else:
            replies[site] = Message(parts.get(site, {}), as_mapping(facts[site]))
    return replies, missing


def _split_tensors(message: Message) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors by the first part of their names, without those that have one part."""
    parts = dict[str, dict[str, torch.Tensor]]()
    for name, value in message.tensors.items():
        first, slash, rest = name.partition("/")
        if slash:
            parts.setdefault(first, {})[rest] = value
    return parts
