"""Our options and the image are found among docker's words, and docker's words stay as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field

import pytest

from gpushared.cli import docker_args
from gpushared.cli.docker_args import refuse_ways_around, split
from gpushared.cli.errors import UsageError
from gpushared.domain.model.errors import PermissionRefused, RequestError


@dataclass(frozen=True)
class Case:
    """What was typed, and how it is sorted."""

    typed: str
    image: str
    docker: str
    ours: dict[str, str] = field(default_factory=dict)


CASES = {
    "only an image": Case("busybox", "busybox", "busybox"),
    "our value apart and joined": Case(
        "--gpu 0.25 --class=infer busybox", "busybox", "busybox", {"gpu": "0.25", "class": "infer"}
    ),
    "ours among docker's": Case(
        "-it --gpu 0.25 --rm -v /a:/b --time 2h busybox sh",
        "busybox",
        "-it --rm -v /a:/b busybox sh",
        {"gpu": "0.25", "time": "2h"},
    ),
    "a switch of ours": Case("--immediate busybox", "busybox", "busybox", {"immediate": "true"}),
    "a switch of ours turned off": Case("--immediate=false busybox", "busybox", "busybox", {"immediate": ""}),
    "the last one counts": Case("--gpu 1 --gpu 0.5 busybox", "busybox", "busybox", {"gpu": "0.5"}),
    "after the image all is the command's": Case(
        "busybox app --gpu 1 --gpus all -e X", "busybox", "busybox app --gpu 1 --gpus all -e X"
    ),
    "a value that looks like our option": Case("--name --gpu busybox", "busybox", "--name --gpu busybox"),
    "docker's memory is not ours": Case("--memory 1g -m 1g busybox", "busybox", "--memory 1g -m 1g busybox"),
    "docker's short options in one word": Case("-itde A=1 busybox", "busybox", "-itde A=1 busybox"),
    "a short value joined": Case("-eA=1 -p80:80 busybox", "busybox", "-eA=1 -p80:80 busybox"),
    "a short value with an equals sign": Case("-u=1000 busybox", "busybox", "-u=1000 busybox"),
    "a short switch turned off": Case("-t=false busybox", "busybox", "-t=false busybox"),
    "a long switch turned off": Case("--rm=false busybox", "busybox", "--rm=false busybox"),
    "hostname is docker's -h": Case("-h box busybox", "busybox", "-h box busybox"),
    "two dashes end the options": Case("--rm -- busybox --gpu 1", "busybox", "--rm -- busybox --gpu 1"),
    "an unknown option takes a value": Case("--new x busybox", "busybox", "--new x busybox"),
    "an unknown switch is written with a value": Case("--new=true busybox", "busybox", "--new=true busybox"),
    "restart is allowed": Case("--restart always -d busybox", "busybox", "--restart always -d busybox"),
    "no image": Case("--gpu 1", "", "", {"gpu": "1"}),
    "nothing": Case("", "", ""),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_words_are_sorted(case: Case) -> None:
    words = split(case.typed.split())
    assert words.image == case.image
    assert words.docker == case.docker.split()
    assert words.own_options == case.ours


@pytest.mark.parametrize(
    "typed", ["--gpu", "--name", "-v", "-itv", "--gpu= busybox", "--immediate=maybe busybox"]
)
def test_an_option_without_a_proper_value_is_a_mistake_of_the_command_line(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        split(typed.split())
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["9" * 100_000, "\udcff"])
def test_a_value_that_cannot_be_one_is_refused_in_a_short_sentence(value: str) -> None:
    """Neither a megabyte of digits nor broken UTF-8 comes back to the terminal."""
    with pytest.raises(RequestError) as caught:
        split(["--gpu", value, "busybox"])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "typed",
    [
        "--gpus all",
        "--gpus=1",
        "--device /dev/nvidia0",
        "--device=/dev/nvidiactl:/dev/nvidiactl",
        "--device nvidia.com/gpu=all",
        "--device gpushare.io/lease=l-1",
        "-e NVIDIA_VISIBLE_DEVICES=all",
        "-eNVIDIA_VISIBLE_DEVICES",
        "--env=NVIDIA_VISIBLE_DEVICES=0",
        "-ite NVIDIA_VISIBLE_DEVICES=0",
        "-l gpushare.lease=l-1",
        "--label gpushare.lease=l-1",
    ],
)
def test_a_way_around_the_lease_is_refused_with_a_hint(typed: str) -> None:
    with pytest.raises(PermissionRefused) as caught:
        refuse_ways_around(split([*typed.split(), "busybox"]))
    assert caught.value.hint


@pytest.mark.parametrize(
    "typed",
    [
        "-e CUDA_LAUNCH_BLOCKING=1",
        "--device /dev/fuse",
        "-l team=vision",
        "-e MY_NVIDIA_VISIBLE_DEVICES=1",
        "--gpu 1",
    ],
)
def test_ordinary_options_are_not_refused(typed: str) -> None:
    refuse_ways_around(split([*typed.split(), "busybox"]))


@pytest.mark.parametrize(
    ("typed", "detached"),
    [("-d", True), ("-dit", True), ("--detach", True), ("--detach=false", False), ("-it", False)],
)
def test_a_switch_is_found_in_every_spelling(typed: str, detached: bool) -> None:
    assert split([typed, "busybox"]).is_set("detach") is detached


@pytest.mark.docker
def test_the_switches_are_those_of_the_docker_cli() -> None:
    """The real docker CLI's help shows a word after each option with a value, and none after a switch."""
    docker = shutil.which("docker")
    assert docker is not None, "the docker CLI must be on PATH"
    text = subprocess.run([docker, "run", "--help"], capture_output=True, text=True, check=True).stdout
    options = re.findall(r"^ +(?:-(\w), |    )--([a-z0-9-]+)( \S+)?(?:  |$)", text, re.MULTILINE)
    switches = {name: short for short, name, value in options if not value}
    known_short = {name: short for short, name in docker_args.DOCKER_SHORT_SWITCHES.items()}
    assert len(options) > 90
    assert set(switches) <= docker_args.DOCKER_SWITCHES
    assert {name: short for name, short in switches.items() if short} == known_short
    values = {name for _, name, value in options if value}
    assert not values & docker_args.DOCKER_SWITCHES
    # docker run --isolation is for Windows containers; on Linux it knows the one word "default".
    ours = docker_args.RUN.values | docker_args.RUN.switches
    assert ours & (values | set(switches)) == {"isolation"}
