"""What is printed is what was written: no word between colons becomes a picture."""

from __future__ import annotations

import ast

from pipelines.run import main
from rooms import ROOMS, ROOT


def test_no_console_turns_words_into_pictures() -> None:
    """Of rich, `file.yaml:100: wrong` is a file, a picture of a hundred, and `wrong`."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
        if not {"emoji", "quiet"} & {each.arg for each in node.keywords if isinstance(each.value, ast.Constant)}
    ]
    assert wrong == []


def test_a_problem_in_line_100_is_shown_with_its_line(tmp_path, capsys) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("#\n" * 99 + "wrong: 1\n")
    assert main([str(path)]) == 2
    assert "long.yaml:100: wrong" in "".join(capsys.readouterr().err.split("\n"))
