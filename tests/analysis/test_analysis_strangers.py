"""A run folder from a stranger: nothing in it is executed, nothing it says commands the terminal or the page."""

import json
import pickle
import subprocess
import sys

import pytest

from analysis.cli import main
from scaling.records import RunDirectory

MARKUP = "<script>alert(1)</script> ![x](javascript:alert(1)) [a](http://e) $\\frac{1$ [red]x[/red] | `x` =cmd"
CLEAR_SCREEN = "\x1b[2J"


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return (open, (str(self.proof), "w"))


@pytest.fixture
def strangers(tmp_path, one_run):
    """A sweep whose every text is hostile, and the file that exists once anything of it was executed."""
    folder, proof = tmp_path / "strangers", tmp_path / "executed"
    for variant, loss in (("baseline", 3.0), ("evil", 2.9)):
        for i, width in enumerate((64, 96, 128, 160)):
            run = one_run(folder, variant, width, loss=loss - 0.2 * i)
            facts = run.read_run()
            facts |= {"variant": variant if variant == "baseline" else MARKUP, "size": f"{MARKUP} {width}"}
            facts["data"]["name"] = MARKUP
            facts["training"]["tuning"] = {"optimizer": MARKUP}
            facts["attempts"] = [{"machine": {"processor": MARKUP}}]
            run.write_run(facts)
            (run.path / "config.yaml").write_text(f'!!python/object/apply:os.system ["touch {proof}"]\n')
            (run.path / "last.ckpt").write_bytes(pickle.dumps(Payload(proof)))
            (run.path / "sitecustomize.py").write_text(f"open({str(proof)!r}, 'w')\n")
    return folder, proof


def test_nothing_is_executed_and_everything_is_escaped(strangers, tmp_path, capsys):
    folder, proof = strangers
    out = tmp_path / "out"
    for command in (["collect", folder, out], ["fit", out], ["multiplier", out], ["plots", out], ["report", out]):
        assert main([str(part) for part in command]) == 0
    printed = subprocess.run(
        [sys.executable, "-m", "scaling", "status", str(folder)], capture_output=True, text=True, check=True
    )
    page = (out / "report.html").read_text()
    assert "<script>" not in page
    assert "javascript:" not in page.replace("(javascript:", "")  # only as text between brackets
    assert 'href="' not in page
    assert "\x1b" not in capsys.readouterr().out + printed.stdout
    assert not proof.exists()


@pytest.mark.parametrize("name", ["run.json", "status.json", "result.json"])
def test_a_file_that_commands_the_terminal_is_refused(strangers, tmp_path, capsys, name):
    folder, _ = strangers
    run = RunDirectory(next(iter(sorted(folder.iterdir()))))
    path = run.path / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"message": CLEAR_SCREEN}))
    assert main(["collect", str(folder), str(tmp_path / "out")]) == 0
    printed = subprocess.run(
        [sys.executable, "-m", "scaling", "status", str(folder)], capture_output=True, text=True, check=True
    )
    shown = capsys.readouterr().out + printed.stdout
    assert "\x1b" not in shown
    assert f"{name} holds control characters" in shown


@pytest.mark.parametrize("command", ["multiplier", "fit"])
def test_a_table_that_commands_the_terminal_is_refused(tmp_path, capsys, command):
    for name, text in (
        ("runs.csv", f"size,variant,val_loss,flops_model\na,baseline{CLEAR_SCREEN},3,1e15\n"),
        ("bare.csv", f"loss,N,D,note\n3,1e6,1e8,{CLEAR_SCREEN}\n"),
    ):
        (tmp_path / name).write_text(text)
        assert main([command, str(tmp_path / name)]) == 2
        out, err = capsys.readouterr()
        assert "line 2 holds a control character" in err
        assert "\x1b" not in out + err


def test_a_directory_whose_name_commands_the_terminal_is_refused(strangers, tmp_path, capsys):
    folder, _ = strangers
    next(folder.iterdir()).rename(folder / f"x{CLEAR_SCREEN}")
    assert main(["collect", str(folder), str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "control characters" in err
