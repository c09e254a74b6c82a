"""The CUDA probe against a driver that keeps accounts only, and without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.gpu.child import Child, Done, run
from bench.gpu.lab import BuildFailed, build_probe

ALLOCATIONS = ("malloc", "async", "vmm", "managed")


async def probe_with(probe: Path, environ: dict[str, str], *actions: str, **more: str) -> Done:
    return await run([probe, *actions], seconds=20, env=environ | more)


async def values(probe: Path, environ: dict[str, str], *actions: str, **more: str) -> dict[str, Any]:
    done = await probe_with(probe, environ, *actions, **more)
    assert done.rc == 0, done
    return done.values()


async def test_without_a_driver_it_says_so_in_a_line_and_by_its_status(probe: Path):
    done = await run([probe, "info"], seconds=20, env={"LD_LIBRARY_PATH": "/nonexistent"})
    if done.rc == 0:
        pytest.skip("there is a driver on this machine")
    assert done.rc == 3
    assert done.values()["error"]["result"] == "no driver"
    assert "libcuda.so.1" in done.values()["error"]["detail"]


async def test_a_driver_without_a_device_is_told_apart(probe: Path, driver_environ: dict[str, str]):
    done = await probe_with(probe, driver_environ, "info", FAKE_CUDA_NO_DEVICE="1")
    assert done.rc == 4
    assert done.values()["error"]["detail"] == "CUDA_ERROR_NO_DEVICE"


@pytest.mark.parametrize(
    "actions", [(), ("bogus",), ("alloc", "malloc"), ("sleep", "soon"), ("info", "loop", "matmul")], ids=str
)
async def test_wrong_words_are_refused_before_anything_is_done(
    probe: Path, driver_environ: dict[str, str], actions: tuple[str, ...]
):
    done = await probe_with(probe, driver_environ, *actions)
    assert done.rc == 2
    assert set(done.values()) == {"error"}


async def test_it_says_what_it_sees(probe: Path, driver_environ: dict[str, str]):
    info = (await values(probe, driver_environ, "info", FAKE_CUDA_LIMIT_MIB="1000"))["info"]
    assert info["device"] == 'made-up "GPU"'
    assert info["uuid"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert info["sm_count"] == 40
    assert (info["free_bytes"], info["total_bytes"]) == (1000 << 20, 16384 << 20)


@pytest.mark.parametrize("method", ALLOCATIONS)
async def test_it_takes_memory_until_it_is_refused(probe: Path, driver_environ: dict[str, str], method: str):
    actions = ("alloc", method, "2048", "64")
    alloc = (await values(probe, driver_environ, *actions, FAKE_CUDA_LIMIT_MIB="1000"))["alloc"]
    assert alloc["allocated_mib"] == 960
    assert alloc["result"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize("method", ALLOCATIONS)
async def test_it_takes_no_more_than_it_was_asked_for_and_gives_it_back(
    probe: Path, driver_environ: dict[str, str], method: str
):
    seen = await values(probe, driver_environ, "alloc", method, "150", "64", "free")
    assert seen["alloc"]["allocated_mib"] == 128
    assert seen["alloc"]["result"] == "CUDA_SUCCESS"
    assert seen["free"]["free_bytes"] == seen["free"]["total_bytes"]


async def test_memory_of_an_unknown_kind_is_a_result_not_a_crash(probe: Path, driver_environ: dict[str, str]):
    seen = await values(probe, driver_environ, "alloc", "bogus", "64", "64")
    assert seen["alloc"]["allocated_mib"] == 0
    assert seen["alloc"]["result"] != "CUDA_SUCCESS"


async def test_memory_can_be_handed_to_another_process(
    probe: Path, driver_environ: dict[str, str], tmp_path: Path
):
    handles = str(tmp_path / "handles")
    await values(probe, driver_environ, "share", "256", "64", handles)
    assert (await values(probe, driver_environ, "import", handles))["import"]["allocated_mib"] == 256


async def test_a_fault_is_seen_and_what_follows_fails_too(probe: Path, driver_environ: dict[str, str]):
    seen = await values(probe, driver_environ, "alive", "fault", "alive")
    results = [seen[key]["result"] for key in ("alive", "fault", "alive_2")]
    assert results == ["CUDA_SUCCESS", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_ADDRESS"]


@pytest.mark.parametrize("kind", ["matmul", "copy", "short"])
async def test_a_loop_times_every_round(probe: Path, driver_environ: dict[str, str], kind: str):
    loop = (await values(probe, driver_environ, "loop", kind, "0.02"))["loop"]
    assert loop["result"] == "CUDA_SUCCESS"
    assert loop["rounds"] > 0
    assert loop["p50_seconds"] <= loop["p99_seconds"]


async def test_it_waits_for_its_turn(probe: Path, driver_environ: dict[str, str]):
    child = await Child.start([probe, "info", "wait", "alive"], env=driver_environ)
    assert await child.next("info", 20)
    await child.go_on()
    assert (await child.next("alive", 20))["result"] == "CUDA_SUCCESS"
    assert (await child.finish(5)).rc == 0


async def test_a_driver_that_lacks_a_function_answers_as_such(probe: Path, driver_environ: dict[str, str]):
    seen = await values(probe, driver_environ, "checkpoint", "lock", "1")
    assert seen["checkpoint"]["result"] == "CUDA_ERROR_NOT_FOUND"


async def test_a_driver_that_hangs_costs_no_more_than_the_childs_time(
    probe: Path, hanging_environ: dict[str, str]
):
    done = await run([probe, "info"], seconds=0.2, env=hanging_environ)
    assert done.timed_out


async def test_without_nvcc_the_build_says_so(tmp_path: Path):
    with pytest.raises(BuildFailed, match="nvcc is not installed"):
        await build_probe(None, tmp_path)


async def test_a_compiler_that_fails_is_quoted(tmp_path: Path):
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho out of ideas >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(BuildFailed, match="out of ideas"):
        await build_probe(str(compiler), tmp_path)
