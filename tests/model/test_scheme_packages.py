"""Schemes of other packages: a real distribution on the path, in a process of its own."""

import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import yaml

from scaling.config import ResidualConfig

SCHEME = '''
"""h_{l+1} = factor (h_l + f_l(h_l))."""

from scaling.model.residual.baseline import Baseline


class Shrunk(Baseline, name="shrunk"):
    def __init__(self, n_sublayers, d_model, eps, *, factor: float = 0.9):
        super().__init__(n_sublayers, d_model, eps)
        self.factor = factor

    def write(self, state, sublayer, output):
        return self.factor * (state + output)
'''


def install(folder, entry_point, module=SCHEME):
    """What pip leaves of a package with one module."""
    (folder / "shrunk_scheme.py").write_text(module)
    info = folder / "shrunk_scheme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shrunk-scheme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[scaling.residual_schemes]\nshrunk = {entry_point}\n")


def scaling(arguments, packages, cwd):
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")]), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "scaling", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_package_adds_a_scheme_that_sweeps(tiny_run, change, write_sweep, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    install(packages, "shrunk_scheme")
    few = change(change(tiny_run, "train", tokens=512 * 4), "execution", validate_every=2, checkpoint_every=2)
    arms = {"baseline": {}, "shrunk": {"scheme": "shrunk", "options": {"factor": 0.8}}}
    done = scaling(["sweep", str(write_sweep(few, variants=arms))], packages, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = list((tmp_path / "runs").glob("tiny/*/result.json"))
    assert {path.parent.name.split("-")[0] for path in results} == {"baseline", "shrunk"}


@pytest.mark.parametrize(
    ("entry_point", "module", "reason"),
    [
        ("no_such_module", SCHEME, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("shrunk_scheme", "1 / 0\n", "ZeroDivisionError: division by zero"),
        ("shrunk_scheme", SCHEME.replace('name="shrunk"', 'name="full"'), "residual scheme 'full' is registered twice"),
    ],
)
def test_a_broken_package_is_one_line_that_names_it(tiny_run, tmp_path, entry_point, module, reason):
    packages = tmp_path / "packages"
    packages.mkdir()
    install(packages, entry_point, module)
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(asdict(replace(tiny_run, residual=ResidualConfig("full")))))
    done = scaling(["train", str(config)], packages, tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "package shrunk-scheme: its entry point shrunk" in done.stderr
    assert reason in done.stderr
