"""What happens to a file that is damaged, cut, or no fabric at all? One clear message, never a traceback."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from erfs.errors import ConfigError, Problem
from erfs.importers import Imported, load_fabric, reading

Import = Callable[..., Imported]
Problems = Callable[[bytes | str], tuple[Problem, ...]]
Erfs = Callable[..., tuple[int, str, str]]


def edited(raw: bytes, line: int, old: bytes, new: bytes) -> bytes:
    """*raw* with the first *old* of its line *line* (from 1) replaced."""
    lines = raw.split(b"\n")
    assert old in lines[line - 1], lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    return b"\n".join(lines)


def test_a_dump_cut_in_the_middle_is_one_message_that_names_the_line(
    real: dict[str, bytes], problems_of: Problems
) -> None:
    for name in ("small", "dgx", "selene", "clos", "clos -p"):
        half = real[name][: len(real[name]) // 2]
        (problem,) = problems_of(half)
        assert problem.line == half.rstrip(b"\n").count(b"\n") + 1
        assert "cut" in problem.message


def test_a_dump_cut_at_the_end_of_a_line_names_what_is_missing(real: dict[str, bytes], problems_of: Problems) -> None:
    (problem,) = problems_of(b"\n".join(real["dgx"].split(b"\n")[:60]) + b"\n")

    assert problem.line == 60
    assert '36 nodes that it names have no record, the first is "H-e09d7303007a4bd8" in line 11' in problem.message


def test_a_dump_that_lacks_only_its_last_line_is_cut(real: dict[str, bytes], problems_of: Problems) -> None:
    lines = real["small"].rstrip(b"\n").split(b"\n")

    (problem,) = problems_of(b"\n".join(lines[:-1]) + b"\n")
    assert (problem.line, "cut" in problem.message) == (len(lines) - 1, True)


def test_one_damaged_line_is_one_problem_with_its_line(real: dict[str, bytes], problems_of: Problems) -> None:
    """Neither the other end of the cable nor the ports below a damaged header are reported again."""
    disagree = 'says that "S-0002c903007b78b0"[1] is cabled to "S-b8599f0300fc6de4"[3]'
    for line, old, new, reported, expected in (
        (11, b"[3]", b"[3", 11, "cannot be read"),
        (11, b"4xFDR", b"4xF#R", 11, "cannot be read"),
        (11, b"[3]", b"[99]", 11, "names port 99 of a node with 41 ports"),
        (11, b"[1]", b"[2]", 11, disagree),
        (11, b"[1]", b"[3]", 11, 'says that "S-0002c903007b78b0"[3] is cabled to "H-e41d2d03005cf34c"[1]'),
        (11, b"7b78b0", b"7b78b1", 11, disagree),
        (11, b"4xFDR", b"4xEDR", 21, "is 4xFDR here and 4xEDR in line 11"),
        (10, b"Switch", b"Swi\xc3\xb6ch", 10, "cannot be read"),
        (10, b"S-b8599f0300fc6de4", b"S-b8599f0300fc6de5", 10, "the lines above give it the GUID b8599f0300fc6de4"),
        (9, b"switchguid=", b"switchguid:", 9, "cannot be read"),
        (11, b"[3]", b"[23]", 12, "is there twice, first in line 11"),
    ):
        (problem,) = problems_of(edited(real["small"], line, old, new))
        assert (problem.line, expected in problem.message) == (reported, True), problem


def test_a_damaged_line_of_the_port_form_is_one_problem(real: dict[str, bytes], problems_of: Problems) -> None:
    for old, new in ((b"SW ", b"XW "), (b" - ", b" + "), (b"0x", b"0y"), (b"( '", b"( ")):
        (problem,) = problems_of(edited(real["clos -p"], 31, old, new))
        assert problem.line == 31


def test_every_damaged_line_is_reported_at_once(real: dict[str, bytes], problems_of: Problems) -> None:
    raw = real["small"]
    for line in (11, 26, 41):
        raw = edited(raw, line, b'"' if line == 41 else b"[", b"~")

    assert [problem.line for problem in problems_of(raw)] == [11, 26, 41]


def test_a_cable_that_one_record_does_not_list_is_a_problem(real: dict[str, bytes], problems_of: Problems) -> None:
    lines = real["small"].split(b"\n")
    del lines[10]

    (problem,) = problems_of(b"\n".join(lines))
    assert problem.line == 20
    assert (
        'is said to be cabled to "S-b8599f0300fc6de4"[3], but that node\'s record (line 10) has no such port'
        in problem.message
    )


@pytest.mark.parametrize("name", ["small", "clos -p", "netq", "clab"])
def test_a_nul_byte_names_its_line(real: dict[str, bytes], problems_of: Problems, name: str) -> None:
    (problem,) = problems_of(edited(real[name], 12, b" ", b"\x00"))

    assert (problem.line, "NUL byte" in problem.message) == (12, True)


def test_a_byte_that_is_no_utf8_names_its_line(real: dict[str, bytes], problems_of: Problems) -> None:
    (problem,) = problems_of(edited(real["small"], 12, b"r-dcs96", b"r-dcs\xff6"))

    assert (problem.line, problem.message) == (12, "this line holds the byte 0xff at column 58, which is not UTF-8")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "is empty"),
        (b"  \n\n", "holds only blanks"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "is a JPEG picture"),
        (b"\x89PNG\r\n\x1a\n", "is a PNG picture"),
        (b"%PDF-1.7", "is a PDF document"),
        (b"\x7fELF\x02", "is an ELF program"),
        (b"\x01\x02\x00\xfe" * 50, "is no text: this line holds a NUL byte"),
        ("Switch".encode("utf-16"), "is UTF-16 text"),
        (b"hello\nworld\n", "is in no known fabric format, it begins 'hello'"),
        (b"{", "is no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is JSON that cannot be read"),
        (b'{"hello": 1}', "is JSON with the members 'hello', no fabric"),
        (b"<svg/>", "is XML with the root element 'svg', no fabric"),
        (b"<graphml><node", "is no well-formed XML"),
        (b"<graphml>" + b"<a>" * 100 + b"</a>" * 100 + b"</graphml>", "nested more than 64 deep"),
        (b"topology: [1, 2", "is no YAML"),
        (b"topology: " + b"[" * 200_000, "nested more than 64 deep"),
        (b"topology:" + b"".join(b"\n" + b" " * n + b"a:" for n in range(1, 1000)), "nested too deeply"),
        (b"topology: 5\n", "not a containerlab topology"),
        (b"topology:\n  nodes: {}\n", 'the topology has no "nodes"'),
        (b"SwitchName=s1 Nodes=a[1-\n", "is no list of numbers"),
        (b"Unicast lids [0x0-0x1] of switch\n", "is a forwarding table dump"),
    ],
)
def test_what_is_no_fabric_file_is_recognised(problems_of: Problems, raw: bytes, expected: str) -> None:
    (problem,) = problems_of(raw)

    assert expected in problem.message


def test_xml_entities_are_refused_before_they_expand(problems_of: Problems) -> None:
    bomb = b'<?xml version="1.0"?>\n<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>\n<graphml>&b;</graphml>'

    (problem,) = problems_of(bomb)
    assert (problem.line, "DOCTYPE" in problem.message) == (2, True)


def test_yaml_aliases_are_never_expanded(problems_of: Problems) -> None:
    """The text this stands for has 9^30 entries; reading and reporting it takes no longer than its 31 lines."""
    anchors = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 31))
    merges = "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 31))
    text = f"a0: &a0 [x]\n{anchors}m0: &m0 {{y: z}}\n{merges}topology:\n  nodes:\n    n: *m30\n  links: [*a30, {{endpoints: *a30}}]\n"

    assert len(problems_of(text)) == 2


def test_a_damaged_packed_file_says_so(shared: Path, tmp_path: Path) -> None:
    for name, change, expected in (
        ("ibnetdiscover_dgx_ndr_rail_40sw.txt.gz", lambda raw: raw[: len(raw) // 2], "ends too early"),
        (
            "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz",
            lambda raw: raw[:5000] + b"xxxx" + raw[5004:],
            "is gzip data that is damaged",
        ),
        ("ibnetdiscover_dgx_ndr_rail_40sw.txt.gz", lambda raw: raw + b"more", "something else behind it"),
        ("ibnetdiscover_selene_compute_666sw.txt.xz", lambda raw: raw[: len(raw) // 2], "ends too early"),
        (
            "ibnetdiscover_selene_compute_666sw.txt.xz",
            lambda raw: raw[:5000] + b"xxxx" + raw[5004:],
            "is xz data that cannot be",
        ),
        ("ibnetdiscover_selene_compute_666sw.txt.xz", lambda raw: raw + b"more", "something else behind it"),
    ):
        path = tmp_path / "file"
        path.write_bytes(change((shared / "topologies" / name).read_bytes()))
        with pytest.raises(ConfigError, match=expected):
            load_fabric(path)


def test_unpacking_stops_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SIZE_MAX", 1 << 20)
    monkeypatch.setattr(reading, "_CHUNK", 1 << 16)
    for pack in (gzip.compress, lzma.compress):
        path = tmp_path / "bomb"
        path.write_bytes(pack(bytes(4 << 20)))
        with pytest.raises(ConfigError, match="unpacks to more than 1 MiB"):
            load_fabric(path)


def test_packed_twice_is_named(tmp_path: Path, real: dict[str, bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(gzip.compress(real["small"])))

    with pytest.raises(ConfigError, match="gzip data inside compressed data"):
        load_fabric(path)


def test_several_packed_streams_are_one_file(tmp_path: Path, real: dict[str, bytes]) -> None:
    at = real["small"].index(b"\n\nvendid") + 1
    for pack in (gzip.compress, lzma.compress):
        path = tmp_path / "file"
        path.write_bytes(pack(real["small"][:at]) + pack(real["small"][at:]))
        assert len(load_fabric(path).fabric.links) == 16


def test_lenient_keeps_what_is_sound_and_returns_the_problems(real: dict[str, bytes], imported: Import) -> None:
    raw = edited(real["small"], 12, b"[23]", b"(23)")

    found = imported(raw, is_lenient=True)
    assert len(found.fabric.links) == 16  # the adapter's own record still tells of the cable
    assert [problem.line for problem in found.problems] == [12]
    assert [problem.line for problem in found.unparsed] == [12]


def test_lenient_drops_a_cable_on_which_the_records_contradict(real: dict[str, bytes], imported: Import) -> None:
    found = imported(edited(real["small"], 11, b"[1]", b"[2]"), is_lenient=True)

    assert len(found.fabric.links) == 15
    assert not found.fabric.trunks
    assert len(found.problems) == 1


def test_lenient_keeps_the_whole_part_of_a_cut_dump(real: dict[str, bytes], imported: Import) -> None:
    """The switches stand first, so half of the dump still names every cable."""
    found = imported(real["dgx"][: len(real["dgx"]) // 2], is_lenient=True)

    assert len(found.problems) == 1
    assert len(found.fabric.switches) == 40
    assert len(found.fabric.links) == 1_113


def test_files_that_cannot_be_opened_are_messages(run_erfs: Erfs, tmp_path: Path) -> None:
    for path, expected in (
        (tmp_path / "none", "cannot be read: no such file"),
        (tmp_path, "is a directory"),
    ):
        code, out, err = run_erfs("fabric", "show", path)
        assert (code, out, err.startswith(f"erfs: {path}")) == (64, "", True)
        assert expected in err
        assert err.count("\n") == 1


def test_damaged_files_exit_64_with_one_message(run_erfs: Erfs, tmp_path: Path, real: dict[str, bytes]) -> None:
    for raw, expected in (
        (real["selene"][: len(real["selene"]) // 2], ":20046: the file seems to be cut"),
        (edited(real["dgx"], 14, b"[", b"{"), ":14: this line cannot be read"),
        (edited(real["dgx"], 14, b"[", b"\x00"), ":14: this line holds a NUL byte at column 1"),
        (b"", ": is empty"),
        (b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8, ": is a JPEG picture"),
    ):
        path = tmp_path / "file"
        path.write_bytes(raw)
        code, out, err = run_erfs("fabric", "show", path)
        assert (code, out) == (64, "")
        assert err.startswith(f"erfs: {path}{expected}")
        assert err.count("\n") == 1


def test_lenient_on_the_command_line_shows_and_warns(run_erfs: Erfs, tmp_path: Path, real: dict[str, bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(edited(real["dgx"], 14, b"[", b"{"))

    code, out, err = run_erfs("fabric", "show", "--lenient", path)
    assert code == 0
    assert "left out of the file (1)" in out
    assert f"erfs: {path}:14: this line cannot be read" in err
