"""The reader of code blocks is itself to be trusted: what it runs, what it compares, what it refuses."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import Block, PageError, matches, play, read_blocks, read_commands

posix = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")


def read(page: str) -> list[Block]:
    return list(read_blocks(textwrap.dedent(page).lstrip("\n"), "page.md"))


def tell(page: str, folder: Path) -> None:
    for block in read(page):
        play(block, folder)


def test_a_block_knows_its_language_options_and_line() -> None:
    [block] = read(
        """
        # Title

        ```python title="shop/tasks.py"
        x = 1
        ```
        """
    )
    assert (block.language, block.line, block.text) == ("python", 4, "x = 1\n")
    assert block.title == "shop/tasks.py"


def test_blocks_come_in_page_order() -> None:
    page = "```python\na\n```\n\n~~~json\n{}\n~~~\n\n```text\nb\n```\n"
    assert [block.language for block in read(page)] == ["python", "json", "text"]


def test_a_longer_fence_holds_a_shorter_one() -> None:
    [block] = read("````text\n```python\nx\n```\n````\n")
    assert block.text == "```python\nx\n```\n"


def test_a_block_in_a_list_loses_its_indentation() -> None:
    [block] = read("- first:\n\n  ```python\n  if x:\n\n      y()\n  ```\n")
    assert block.text == "if x:\n\n    y()\n"


def test_a_block_in_a_quotation_loses_its_marks() -> None:
    [block] = read("> ```python\n> x = 1\n>\n> y = 2\n> ```\n")
    assert block.text == "x = 1\n\ny = 2\n"


def test_code_between_backticks_in_a_sentence_is_no_block() -> None:
    assert read("``` like this ``` in a sentence\n") == []


def test_a_first_line_that_is_only_a_path_names_the_file() -> None:
    [named, prose] = read("```python\n# shop/tasks.py\n```\n```python\n# see shop/tasks.py\n```\n")
    assert named.title == "shop/tasks.py"
    assert prose.title is None


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nx\n", "page.md:1: this code block is never closed"),
        ("```\nx\n```\n", "page.md:1: a block in 'no language'"),
        ("```cobol\nx\n```\n", "page.md:1: a block in 'cobol'"),
        ("text\n\n```console norun\n$ x\n```\n", "page.md:3: norun needs a reason"),
        ('```text norun=""\nx\n```\n', "page.md:1: norun needs a reason"),
        ("```console verfy\n$ x\n```\n", "page.md:1: unknown option 'verfy'"),
        ("```console exit=bad\n$ x\n```\n", "page.md:1: exit needs a number"),
        ('```python title="x\n1\n```\n', "page.md:1: cannot read"),
    ],
)
def test_a_block_that_cannot_be_understood_is_refused(page: str, complaint: str) -> None:
    with pytest.raises(PageError, match=complaint):
        read(page)


def test_commands_are_told_from_their_output() -> None:
    [block] = read("```console\n# first\n$ one\n1\n2\n$ two \\\n>   --more\n```\n")
    one, two = read_commands(block)
    assert (one.line, one.text, one.expected) == (3, "one", "1\n2\n")
    assert (two.line, two.text, two.expected) == (6, "two --more", "")


@pytest.mark.parametrize("text", ["pip install rowlock\n$ rowlock demo\n", "# nothing\n", ""])
def test_a_console_block_without_its_dollar_sign_is_refused(text: str) -> None:
    [block] = read(f"```bash\n{text}```\n")
    with pytest.raises(PageError, match=r"'\$ '"):
        read_commands(block)


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("done\n", "done  \n", True),
        ("done\n", "done\nmore\n", False),
        ("job ... done\n", "job 17 done\n", True),
        ("first\n...\nlast\n", "first\na\nb\nlast\n", True),
        ("a.c\n", "abc\n", False),
        ("", "", True),
        ("", "a surprise\n", False),
    ],
)
def test_expected_output_is_compared_with_dots_for_anything(expected: str, output: str, same: bool) -> None:
    assert matches(expected, output) is same


@posix
def test_a_page_is_a_story_in_one_folder(tmp_path: Path) -> None:
    tell(
        """
        ```python title="shop/tasks.py"
        GREETING = "good morning"
        ```
        ```python
        from shop.tasks import GREETING
        open("said.txt", "w").write(GREETING)
        ```
        ```console verify
        $ cat said.txt && echo
        good ...
        $ python -c "from shop import tasks; print(tasks.__file__)"
        .../shop/tasks.py
        ```
        """,
        tmp_path,
    )
    assert (tmp_path / "said.txt").read_text() == "good morning"


def test_each_script_starts_afresh(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"(?s)page\.md:5: .*line 5.*NameError"):
        tell("```python\nx = 1\n```\n```python\nprint(x)\n```\n", tmp_path)


@posix
def test_a_failing_command_is_shown_with_its_place_and_output(tmp_path: Path) -> None:
    with pytest.raises(PageError) as caught:
        tell("```console\n$ true\n$ echo oh no; exit 3\n```\n", tmp_path)
    assert str(caught.value) == (
        "page.md:3: exit code 3, expected 0\n$ echo oh no; exit 3\n--- output\noh no\n"
    )


@posix
def test_an_expected_exit_code_is_no_failure_and_a_missing_one_is(tmp_path: Path) -> None:
    tell("```console exit=3\n$ exit 3\n```\n", tmp_path)
    with pytest.raises(PageError, match="exit code 0, expected 3"):
        tell("```console exit=3\n$ true\n```\n", tmp_path)


@posix
def test_output_counts_only_where_the_page_asks_for_it(tmp_path: Path) -> None:
    tell("```console\n$ echo yes\nno\n```\n", tmp_path)
    with pytest.raises(PageError, match="another output than the page shows"):
        tell("```console verify\n$ echo yes\nno\n```\n", tmp_path)


@posix
def test_a_command_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SECONDS_PER_COMMAND", 0.2)
    with pytest.raises(PageError, match=r"not done after 0\.2 s\n\$ echo on; tail -f /dev/null"):
        tell("```console\n$ echo on; tail -f /dev/null\n```\n", tmp_path)


def test_a_reason_spares_a_block(tmp_path: Path) -> None:
    tell('```console norun="it needs a cluster"\n$ exit 1\n```\n', tmp_path)


@pytest.mark.parametrize("language", ["json", "toml"])
def test_data_must_parse(language: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=f"page.md:2: this is not {language}"):
        tell(f"```{language}\n{{ no\n```\n", tmp_path)


def test_a_titled_block_of_any_language_becomes_a_file(tmp_path: Path) -> None:
    tell('```toml title="pyproject.toml"\n[tool.rowlock]\napp = "shop:app"\n```\n', tmp_path)
    assert "shop:app" in (tmp_path / "pyproject.toml").read_text()


def test_a_file_must_be_python_and_stay_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"shop\.py is not Python"):
        tell("```python\n# shop.py\ndef\n```\n", tmp_path)
    with pytest.raises(PageError, match="is not a file below"):
        tell('```text title="../shop.py"\n```\n', tmp_path)


def test_settings_of_this_machine_do_not_leak_into_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWLOCK_DATABASE_URL", "sqlite:///elsewhere.db")
    tell('```python\nimport os\nassert "ROWLOCK_DATABASE_URL" not in os.environ\n```\n', tmp_path)
