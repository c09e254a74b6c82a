"""From words to a request: what counts, what wins, what is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.request import Isolation, LeaseClass, Request
from gpushared.domain.model.request_spec import RequestSpec, describe, read_request

GIB = 1024 * MIB
PRESETS = {
    "dev": RequestSpec(gpu="0.25", gpu_memory="8g", time="8h", lease_class="build"),
    "big": RequestSpec(gpu="2"),
    "whole": RequestSpec(gpu="1", isolation="exclusive"),
    "grows": RequestSpec(gpu="0.25..0.5"),
}
WHOLE = Isolation.EXCLUSIVE

READ = {
    "a share": (RequestSpec(gpu="0.25"), Request(1, 250, None, 250)),
    "a whole GPU is exclusive": (RequestSpec(gpu="1"), Request(1, 1000, None, 1000, WHOLE)),
    "whole GPUs are exclusive": (RequestSpec(gpu="2"), Request(2, 1000, None, 1000, WHOLE)),
    "a whole GPU may be shared": (RequestSpec(gpu="1", isolation="shared"), Request(1, 1000, None, 1000)),
    "slices of several": (RequestSpec(gpu="2x0.5"), Request(2, 500, None, 500)),
    "memory alone": (RequestSpec(gpu_memory="8g"), Request(1, None, 8 * GIB)),
    "compute alone": (RequestSpec(gpu_compute="30%"), Request(1, 300, None, 300)),
    "both sides": (RequestSpec(gpu_memory="8g", gpu_compute="30%"), Request(1, 300, 8 * GIB)),
    "a share with its own memory": (RequestSpec(gpu="0.25", gpu_memory="8g"), Request(1, 250, 8 * GIB)),
    "a share with its own compute": (RequestSpec(gpu="0.25", gpu_compute="50%"), Request(1, 500, None, 250)),
    "all compute, little memory": (RequestSpec(gpu="1", gpu_memory="8g"), Request(1, 1000, 8 * GIB)),
    "a class": (
        RequestSpec(gpu="0.25", lease_class="infer"),
        Request(1, 250, None, 250, lease_class=LeaseClass.INFER),
    ),
    "a time limit": (
        RequestSpec(gpu="0.25", time="30m"),
        Request(1, 250, None, 250, time_limit_seconds=1800),
    ),
    "a preset": (
        RequestSpec(preset="dev"),
        Request(1, 250, 8 * GIB, lease_class=LeaseClass.BUILD, time_limit_seconds=28800, preset="dev"),
    ),
    "a separate part": (
        RequestSpec(gpu="0.25", isolation="separate"),
        Request(1, 250, None, 250, Isolation.SEPARATE),
    ),
    "a MIG instance of any size": (
        RequestSpec(gpu="1", isolation="mig"),
        Request(1, isolation=Isolation.MIG),
    ),
    "several MIG instances": (RequestSpec(gpu="3", isolation="mig"), Request(3, isolation=Isolation.MIG)),
    "a MIG instance by its part of the GPU": (
        RequestSpec(gpu="2x0.25", isolation="mig"),
        Request(2, 250, None, 250, Isolation.MIG),
    ),
    "a MIG instance by its memory": (
        RequestSpec(gpu_memory="8g", isolation="mig"),
        Request(1, None, 8 * GIB, isolation=Isolation.MIG),
    ),
    "MIG instances by number, memory and compute": (
        RequestSpec(gpu="2", gpu_memory="8g", gpu_compute="30%", isolation="mig"),
        Request(2, 300, 8 * GIB, isolation=Isolation.MIG),
    ),
    "a MIG instance instead of a preset's whole GPU": (
        RequestSpec(preset="whole", isolation="mig"),
        Request(1, isolation=Isolation.MIG, preset="whole"),
    ),
    "a separate part instead of a preset's whole GPU": (
        RequestSpec(preset="whole", gpu="0.5", isolation="separate"),
        Request(1, 500, None, 500, Isolation.SEPARATE, preset="whole"),
    ),
    "a range of shares": (
        RequestSpec(gpu="0.25..1"),
        Request(1, 250, None, 250, max_compute_permille=1000, max_memory_permille=1000),
    ),
    "a range of shares of several": (
        RequestSpec(gpu="2x0.25..0.5"),
        Request(2, 250, None, 250, max_compute_permille=500, max_memory_permille=500),
    ),
    "a range of whole GPUs": (RequestSpec(gpu="1..4"), Request(1, 1000, None, 1000, WHOLE, max_gpu_count=4)),
    "a range of whole GPUs, said twice": (
        RequestSpec(gpu="2..3", isolation="exclusive"),
        Request(2, 1000, None, 1000, WHOLE, max_gpu_count=3),
    ),
    "a range of memory": (
        RequestSpec(gpu_memory="8g..24g"),
        Request(1, None, 8 * GIB, max_memory_bytes=24 * GIB),
    ),
    "a range of memory beside a share": (
        RequestSpec(gpu="0.25", gpu_memory="8g .. 24g"),
        Request(1, 250, 8 * GIB, max_memory_bytes=24 * GIB),
    ),
    "ranges of both": (
        RequestSpec(gpu="0.25..0.5", gpu_memory="8g..24g"),
        Request(1, 250, 8 * GIB, max_compute_permille=500, max_memory_bytes=24 * GIB),
    ),
    "a range of shares with its own memory": (
        RequestSpec(gpu="0.25..0.5", gpu_memory="8g"),
        Request(1, 250, 8 * GIB, max_compute_permille=500),
    ),
    "compute that others leave": (
        RequestSpec(gpu="0.25", gpu_compute="25%..100%"),
        Request(1, 250, None, 250, compute_limit_permille=1000),
    ),
    "compute that others leave, alone": (
        RequestSpec(gpu_compute="10..50"),
        Request(1, 100, None, 100, compute_limit_permille=500),
    ),
    "compute that others leave beside a range": (
        RequestSpec(gpu="0.25..1", gpu_compute="25%..100%"),
        Request(1, 250, None, 250, max_memory_permille=1000, compute_limit_permille=1000),
    ),
    "a range that leaves no choice": (
        RequestSpec(gpu="0.5..0.5", gpu_compute="50%..50%"),
        Request(1, 500, None, 500),
    ),
    "a separate range": (
        RequestSpec(gpu="0.25..1", isolation="separate"),
        Request(1, 250, None, 250, Isolation.SEPARATE, max_compute_permille=1000, max_memory_permille=1000),
    ),
    "a range in a preset": (
        RequestSpec(preset="grows"),
        Request(1, 250, None, 250, preset="grows", max_compute_permille=500, max_memory_permille=500),
    ),
    "what is typed wins over the preset": (
        RequestSpec(preset="dev", gpu="0.5", time="1h"),
        Request(1, 500, 8 * GIB, lease_class=LeaseClass.BUILD, time_limit_seconds=3600, preset="dev"),
    ),
}
REFUSED = {
    "nothing": (RequestSpec(), "no GPU was asked for"),
    "only a time": (RequestSpec(time="1h"), "no GPU was asked for"),
    "an empty size": (RequestSpec(gpu=" "), "not a part of a GPU"),
    "an index instead of a share": (RequestSpec(gpu="0"), "0 GPUs cannot be asked for"),
    "a negative share": (RequestSpec(gpu="-0.5"), "not a part of a GPU"),
    "an unknown class": (RequestSpec(gpu="1", lease_class="fun"), "not a known class"),
    "an unknown isolation": (RequestSpec(gpu="1", isolation="EXCLUSIVE"), "not a known isolation"),
    "an exclusive part": (RequestSpec(gpu="0.5", isolation="exclusive"), "exclusive means whole GPUs"),
    "an exclusive part of several": (
        RequestSpec(gpu="2x0.5", isolation="exclusive"),
        "exclusive means whole GPUs",
    ),
    "a part of a preset's whole GPU": (RequestSpec(preset="whole", gpu="0.5"), "exclusive means whole GPUs"),
    "a range of shares that is upside down": (RequestSpec(gpu="1..0.25"), "whole GPUs at the other"),
    "a range of parts that is upside down": (RequestSpec(gpu="0.5..0.25"), "upside down"),
    "a range of GPUs that is upside down": (RequestSpec(gpu="4..1"), "upside down"),
    "a range of memory that is upside down": (RequestSpec(gpu_memory="24g..8g"), "upside down"),
    "a range of compute that is upside down": (RequestSpec(gpu_compute="100%..25%"), "upside down"),
    "a range from a part to several GPUs": (RequestSpec(gpu="0.25..2"), "whole GPUs at the other"),
    "a range from several to a part": (RequestSpec(gpu="2..0.5"), "whole GPUs at the other"),
    "a range beyond one GPU": (RequestSpec(gpu="0.25..1.5"), "does not end with a part of one GPU"),
    "parts of several beyond one GPU": (RequestSpec(gpu="2x0.25..2"), "whole GPUs at the other"),
    "the number of GPUs at the end": (RequestSpec(gpu="2x0.25..3x0.5"), "at its end"),
    "a number of parts as a range": (RequestSpec(gpu="1..4x0.5"), "at its end"),
    "a range without an end": (RequestSpec(gpu="0.25.."), "does not end with a part of one GPU"),
    "a range without a beginning": (RequestSpec(gpu="..1"), "not a part of a GPU"),
    "a range of three": (RequestSpec(gpu="0.25..0.5..1"), "does not end with a part of one GPU"),
    "a range of memory without a unit": (RequestSpec(gpu_memory="8..24g"), "not a memory size"),
    "a range of compute beyond all of it": (RequestSpec(gpu_compute="25%..150%"), "not a compute share"),
    "an exclusive range of parts": (
        RequestSpec(gpu="0.25..1", isolation="exclusive"),
        "exclusive means whole GPUs",
    ),
    "an exclusive range of memory": (
        RequestSpec(gpu_memory="8g..24g", isolation="exclusive"),
        "exclusive is all of a GPU's memory",
    ),
    "exclusive compute that others leave": (
        RequestSpec(gpu="1", gpu_compute="25%..100%", isolation="exclusive"),
        "exclusive means whole GPUs",
    ),
    "a range of MIG instances": (RequestSpec(gpu="1..4", isolation="mig"), "they take no ranges"),
    "a MIG instance of a range of memory": (
        RequestSpec(gpu_memory="8g..24g", isolation="mig"),
        "they take no ranges",
    ),
    "a MIG instance with more compute than its own": (
        RequestSpec(gpu_compute="10%..50%", isolation="mig"),
        "they take no ranges",
    ),
    "a range of GPUs that are shared": (RequestSpec(gpu="1..4", isolation="shared"), "which are not shared"),
    "a range of GPUs with memory beside it": (
        RequestSpec(gpu="1..4", gpu_memory="8g"),
        "which are not shared",
    ),
    "a range of GPUs with compute beside it": (
        RequestSpec(gpu="1..4", gpu_compute="50%"),
        "which are not shared",
    ),
    "a huge class": (RequestSpec(gpu="1", lease_class="x" * 10_000_000), "not a known class"),
    "a class with control characters": (RequestSpec(gpu="1", lease_class="\x1b[2J"), "not a known class"),
}


@pytest.mark.parametrize(("ask", "request_"), READ.values(), ids=READ.keys())
def test_words_become_a_request(ask: RequestSpec, request_: Request) -> None:
    """Each side of a lease comes from where the user said it."""
    assert read_request(ask, PRESETS) == request_


@pytest.mark.parametrize(("ask", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_makes_no_sense_is_refused(ask: RequestSpec, message: str) -> None:
    """With one sentence and one hint, both short."""
    with pytest.raises(RequestError, match=message) as caught:
        read_request(ask, PRESETS)
    assert caught.value.hint
    assert len(str(caught.value)) < 250
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", [field.name for field in fields(RequestSpec)])
def test_ten_megabytes_in_any_word_are_refused_briefly(name: str) -> None:
    """Also where the word is a preset's name."""
    ask = RequestSpec(**{"gpu": "0.25", name: "8" * 10_000_000})
    with pytest.raises((RequestError, NotFound)) as caught:
        read_request(ask, PRESETS)
    assert len(str(caught.value)) < 250


def test_an_unknown_preset_names_the_nearest_one() -> None:
    """Or all of them, or that there is none."""
    for name, hint in (("bgi", "did you mean big?"), ("zzz", "presets: big, dev, grows, whole")):
        with pytest.raises(NotFound) as caught:
            read_request(RequestSpec(preset=name), PRESETS)
        assert caught.value.hint == hint
    with pytest.raises(NotFound, match="none are configured here"):
        read_request(RequestSpec(preset="dev"), {})


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (RequestSpec(gpu="0.25"), "0.25"),
        (RequestSpec(gpu="2"), "2"),
        (RequestSpec(gpu="2x0.5"), "2x0.5"),
        (RequestSpec(gpu_memory="8g"), "8 GiB"),
        (RequestSpec(gpu="0.25", gpu_memory="8g"), "0.25 with 8 GiB"),
        (RequestSpec(gpu="0.25", gpu_compute="50%"), "0.25 with 50% compute"),
        (RequestSpec(gpu_compute="30%"), "0.3"),
        (RequestSpec(gpu="0.25..1"), "0.25..1"),
        (RequestSpec(gpu="2x0.25..0.5"), "2x0.25..0.5"),
        (RequestSpec(gpu="1..4"), "1..4"),
        (RequestSpec(gpu_memory="8g..24g"), "8 GiB..24 GiB"),
        (RequestSpec(gpu="0.25", gpu_memory="8g..24g"), "0.25 with 8 GiB..24 GiB"),
        (RequestSpec(gpu="0.25..0.5", gpu_memory="8g..24g"), "0.25..0.5 with 8 GiB..24 GiB"),
        (RequestSpec(gpu="0.25..1", gpu_compute="50%"), "0.25..1 with 50% compute"),
        (RequestSpec(gpu="0.25", gpu_compute="25%..100%"), "0.25 with 25..100% compute"),
        (RequestSpec(gpu_memory="8g", gpu_compute="25%..100%"), "0.25 with 8 GiB and 25..100% compute"),
    ],
)
def test_a_request_is_described_as_one_would_type_it(ask: RequestSpec, text: str) -> None:
    """For tables and sentences."""
    assert describe(read_request(ask, {})) == text
