"""The files for dcgm-exporter, in a folder that others may write to."""

from __future__ import annotations

import os
from pathlib import Path

from gpushared.node.services.dcgm_mapping import write_mapping


def test_a_link_in_the_folder_leads_to_no_other_file(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "mapping"
    victim.write_text("secret")
    victim.chmod(0o600)
    folder.mkdir()
    (folder / ".0.new").symlink_to(victim)
    os.link(victim, folder / ".1.new")
    (folder / "2").symlink_to(victim)
    write_mapping(folder, {"0": "l-1\n", "1": "l-2\n", "2": "l-3\n"})
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("secret", 0o600)
    for name, text in (("0", "l-1\n"), ("1", "l-2\n"), ("2", "l-3\n")):
        file = folder / name
        assert not file.is_symlink()
        assert (file.read_text(), file.stat().st_mode & 0o777) == (text, 0o644)


def test_the_exporter_may_read_the_files_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_mapping(tmp_path, {"0": "l-1\n"})
    finally:
        os.umask(before)
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o644
