"""The figures as they are drawn: nothing overlaps, nothing is cut off, what they must show is there."""

import colorsys
import math
import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from legibility import flaws, texts
from matplotlib.colors import to_rgb

from analysis.allocation import compute_range
from analysis.collect import CURVE_COLUMNS, csv_text
from analysis.curves import load_curves
from analysis.errors import TableError
from analysis.figures import draw_all, frontier, loss_compute, paired_losses, render, training_curves
from analysis.figures.style import looks
from analysis.laws import arm_laws
from analysis.ledgers import axis_unit
from analysis.multiplier import estimates
from analysis.runs import load
from analysis.size_tokens import fit as fit_size_tokens
from analysis.size_tokens import loss_at
from scaling.compute import PFLOPS_DAY

COMPUTE = (1e18, 2e18, 4e18, 8e18, 1.6e19)
CASES = {
    "one arm": {"multipliers": {"block": 1.25}},
    "three arms": {"multipliers": {"block": 1.25, "full": 1.3, "mhc_lite": 1.28}},
    "five arms": {"multipliers": {"block": 1.1, "full": 1.3, "mhc_lite": 1.2, "scalar": 0.9, "window": 1.0}},
    "worse than the baseline": {"multipliers": {"block": 0.7}},
    "no loss in common": {"multipliers": {"block": 40.0}},
    "three sizes": {"multipliers": {"block": 1.2}, "compute": (1e15, 2e15, 3e15)},
    "a wide range": {"multipliers": {"block": 1.5}, "compute": (1e14, 1e16, 1e18, 1e20, 1e22), "alpha": 0.2},
    "a narrow range": {"multipliers": {"block": 1.2}, "compute": (1e18, 1.02e18, 1.04e18, 1.06e18)},
    "twelve sizes": {"multipliers": {"block": 1.2, "full": 1.3}, "compute": tuple(1e18 * 1.5**i for i in range(12))},
    "names that are long or odd": {
        "multipliers": {"_hidden$x^2$ & a name of great length": 1.25, "$\\frac$": 1.4, "残差": 1.2}
    },
}


@pytest.fixture(params=CASES)
def case(request, planted, table):
    return load(table(planted(**{"compute": COMPUTE, "noise": 0.0005, **CASES[request.param]})))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_loss_compute_is_legible_in_every_case(case):
    assert flaws(loss_compute(case, "model")) == []


@pytest.mark.filterwarnings("ignore:Glyph")
def test_paired_losses_are_legible_in_every_case(case):
    assert flaws(paired_losses(case, "model")) == []


@pytest.fixture
def runs(planted, table):
    return load(table(planted({"block": 1.25, "full": 1.4}, compute=COMPUTE, noise=0.0005)))


def test_the_detector_of_flaws_sees_them(runs):
    figure = loss_compute(runs, "model")
    label = next(t for t in texts(figure) if t.get_gid() == "label block")
    label.set_in_layout(False)
    label.xyann = (500, 0)
    assert any("cut off" in flaw for flaw in flaws(figure))
    label.xyann = (5, -20)
    other = next(t for t in texts(figure) if t.get_gid() == "label full")
    other.xy, other.xyann = label.xy, label.xyann
    assert any("overlaps" in flaw for flaw in flaws(figure))


def test_an_arrow_leads_from_the_arms_curve_to_the_baselines_at_equal_loss(runs):
    figure = loss_compute(runs, "model")
    laws = arm_laws(runs, "model")
    unit = axis_unit("model", COMPUTE[-1]).scale
    (axes,) = figure.axes
    for arm in ("block", "full"):
        (arrow,) = (child for child in axes.get_children() if child.get_gid() == f"arrow {arm}")
        (end, loss), (start, level) = arrow.xy, arrow.xyann
        assert level == loss
        assert start == pytest.approx(math.exp(laws[arm].ln_compute(loss)) / unit)
        assert end == pytest.approx(math.exp(laws["baseline"].ln_compute(loss)) / unit)
        assert start < end
        (m,) = (m for m in estimates(runs, "model") if m.arm == arm)
        assert end / start == pytest.approx(m.multiplier, rel=0.1)
        (label,) = (child for child in axes.get_children() if child.get_gid() == f"label {arm}")
        value, low, high = map(float, re.findall(r"\d+\.\d{3,}", label.get_text()))
        assert (value, low, high) == pytest.approx((m.multiplier, *m.interval), abs=0.0005)


def test_the_arrow_is_at_a_loss_that_both_arms_reached(planted, table):
    runs = load(table(planted({"block": 1.25}, noise=0.0005)))
    (axes,) = loss_compute(runs, "model").axes
    (arrow,) = (child for child in axes.get_children() if child.get_gid() == "arrow block")
    for losses in (runs.pairs["loss_baseline"], runs.pairs["loss_arm"]):
        assert losses.min() < arrow.xy[1] < losses.max()


def test_arms_without_a_loss_in_common_are_said_to_be_extrapolated(planted, table):
    for m, said in ((1.2, False), (40.0, True)):
        runs = load(table(planted({"block": m}, noise=0.0005), f"m{m}"))
        (label,) = (t for t in texts(loss_compute(runs, "model")) if t.get_gid() == "label block")
        assert ("extrapolated" in label.get_text()) == said


def test_a_flat_law_does_not_stretch_the_figure(planted, table):
    rows = planted({"block": 1.25}, compute=COMPUTE, alpha=1e-5, noise=0.01)
    for row in rows:
        row["val_loss"] -= 1e-4 * int(row["size"][1])
    figure = loss_compute(load(table(rows)), "model")
    assert flaws(figure) == []
    left, right = figure.axes[0].get_xlim()
    assert right / left < 1e5


@pytest.mark.filterwarnings("ignore:Glyph")
def test_the_legend_leaves_the_curves_free(case):
    figure = loss_compute(case, "model")
    (axes,) = figure.axes
    legends = [axes.get_legend(), *figure.legends]
    (legend,) = (legend for legend in legends if legend)
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    for line in axes.get_lines():
        assert not any(box.contains(x, y) for x, y in line.get_transform().transform(line.get_xydata()))


def test_a_fit_is_solid_over_its_runs_and_dashed_beyond(runs):
    (axes,) = loss_compute(runs, "model").axes
    unit = axis_unit("model", COMPUTE[-1]).scale
    solid = [line for line in axes.get_lines() if line.get_gid() == "fit"]
    dashed = [line for line in axes.get_lines() if line.get_gid() == "extension"]
    assert len(solid) == 3
    for line in solid:
        assert line.get_linestyle() == "-"
        x = line.get_xdata() * unit
        assert (x.min(), x.max()) == pytest.approx((COMPUTE[0], COMPUTE[-1]))
    assert dashed
    for line in dashed:
        assert line.get_linestyle() == "--"
        x = line.get_xdata() * unit
        assert x.max() <= COMPUTE[0] * 1.001 or x.min() >= COMPUTE[-1] * 0.999


def test_axes_are_logarithmic_name_ledger_and_unit_and_have_plain_numbers(golden):
    runs = load(golden("attnres_table2.csv"))
    for ledger in ("6nd", "paper"):
        figure = loss_compute(runs, ledger)
        assert flaws(figure) == []
        (axes,) = figure.axes
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert axes.get_xlabel() == f"training compute, ledger {ledger} (PFLOP/s-days)"
        assert axes.get_ylabel() == "validation loss (nats per token)"
        ticks = [t.get_text() for t in texts(figure) if t in axes.get_yticklabels()]
        assert 3 <= len(ticks) <= 8
        assert all(1.6 < float(tick) < 2.0 and "e" not in tick for tick in ticks)
    points = [line for line in axes.get_lines() if line.get_marker() not in ("None", None)]
    np.testing.assert_allclose(sorted(points[0].get_xdata()), [0.6916, 1.0405, 1.6937, 3.3528, 5.5974])
    np.testing.assert_allclose(points[0].get_ydata(), [1.931, 1.895, 1.829, 1.766, 1.719])


def test_a_pair_beyond_the_baselines_runs_has_an_open_marker(runs):
    figure = paired_losses(runs, "model")
    (axes,) = figure.axes
    markers = [line for line in axes.get_lines() if line.get_marker() in ("s", "^")]
    inside = {(s.pair.loss_baseline - s.pair.loss_arm): s.in_range for m in estimates(runs, "model") for s in m.sizes}
    assert len(markers) == len(inside) == 10
    for marker in markers:
        (gain,) = marker.get_xdata()
        in_range = next(value for key, value in inside.items() if math.isclose(key, gain))
        assert (marker.get_markerfacecolor() != "white") == in_range
    worth = {t.get_text() for t in texts(figure) if t.get_text().endswith("\N{MULTIPLICATION SIGN}")}
    assert worth == {f"{s.multiplier:.2f}\N{MULTIPLICATION SIGN}" for m in estimates(runs, "model") for s in m.sizes}
    assert "ledger model" in axes.get_xlabel()


@pytest.fixture
def swept(sweep, tmp_path, analysis):
    analysis("collect", sweep, tmp_path / "out")
    return load(tmp_path / "out"), load_curves(tmp_path / "out")


def test_training_curves_have_a_panel_a_size_and_a_line_a_run(swept):
    runs, curves = swept
    figure = training_curves(runs, curves)
    assert flaws(figure) == []
    assert [axes.get_title() for axes in figure.axes] == ["w64", "w96", "w128", "w160"]
    assert all(len(axes.get_lines()) == 2 for axes in figure.axes)
    assert figure.get_supxlabel() == "tokens (thousand)"
    assert figure.get_supylabel() == "validation loss (nats per token)"
    block = curves[(curves["run"].str.startswith("block-w64"))].dropna(subset=["val_loss"])
    drawn = figure.axes[0].get_lines()[1]
    np.testing.assert_allclose(drawn.get_xdata() * 1000, block["tokens"])
    np.testing.assert_allclose(drawn.get_ydata(), block["val_loss"])


def test_without_validations_training_loss_is_drawn_smoothed_and_said(swept):
    runs, curves = swept
    figure = training_curves(runs, curves.assign(val_loss=math.nan))
    assert "training loss, running mean" in figure.get_supylabel()
    assert flaws(figure) == []


@pytest.mark.parametrize("sizes", [3, 5, 6])
def test_training_curves_are_legible_for_any_number_of_sizes(swept, planted, table, sizes):
    _, curves = swept
    rows = planted({"block": 1.2, "full": 1.3}, compute=tuple(1e18 * 2**i for i in range(sizes)))
    runs = load(table([{**row, "run": f"{row['variant']}-{row['size']}"} for row in rows], "many"))
    template = curves[curves["run"] == curves["run"].iloc[0]]
    many = [template.assign(run=f"{r['variant']}-{r['size']}", variant=r["variant"], size=r["size"]) for r in rows]
    figure = training_curves(runs, pd.concat(many))
    assert flaws(figure) == []
    assert len([axes for axes in figure.axes if axes.get_lines()]) == sizes


@pytest.fixture
def law():
    size, tokens = (x.ravel() for x in np.meshgrid(np.geomspace(3e7, 1e10, 7), np.geomspace(1e9, 1e12, 6)))
    true = np.array([math.log(480), math.log(2100), math.log(1.8), 0.35, 0.37])
    return fit_size_tokens(size, tokens, loss_at(true, size, tokens), true * 1.01)


def test_the_best_use_of_compute_lies_under_every_run_and_curve(law):
    figure = frontier(law)
    assert flaws(figure) == []
    (axes,) = figure.axes
    solid, dashed = (line for line in axes.get_lines() if line.get_gid() == "best")
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    low, high = compute_range(law)
    assert (solid.get_xdata()[0], solid.get_xdata()[-1]) == pytest.approx((low / PFLOPS_DAY, high / PFLOPS_DAY))
    assert dashed.get_xdata()[-1] == pytest.approx(10 * solid.get_xdata()[-1])
    sizes = [line for line in axes.get_lines() if line.get_gid() == "size"]
    assert len(sizes) == 5
    (runs,) = (child for child in axes.collections if child.get_gid() == "runs")
    for x, y in (*(line.get_xydata().T for line in sizes), runs.get_offsets().T):
        best = np.exp(np.interp(np.log(x), np.log(solid.get_xdata()), np.log(solid.get_ydata())))
        assert (y >= best * (1 - 1e-3)).all()
    assert "best N, as C^0.51" in {t.get_text() for t in texts(figure)}
    assert axes.get_xlabel() == "training compute, 6 N D (PFLOP/s-days)"


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e3])
def test_the_best_use_of_compute_is_legible_at_any_scale(law, factor):
    rows = law.rows
    size, tokens = np.exp(rows.x + rows.centre[0]) * factor**0.5, np.exp(rows.y + rows.centre[1]) * factor
    moved = law.parameters + law.parameters[[3, 4, 3, 4, 3]] * math.log(factor) * [0.5, 1, 0, 0, 0]
    other = fit_size_tokens(size, tokens, np.exp(rows.ln_loss), moved * 1.01)
    assert flaws(frontier(other)) == []


def test_every_figure_is_written_as_png_and_svg(swept, tmp_path):
    paths = draw_all(*swept, tmp_path / "figures")
    assert [path.name for path in paths[::2]] == [
        *(f"loss_compute_{ledger}.png" for ledger in ("model", "6nd", "paper", "seconds")),
        *("paired_losses.png", "forest.png", "multiplier_curve.png", "pinned_floors.png", "power.png"),
        *("training_curves.png", "loss_gap.png"),
    ]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_table_gives_the_same_bytes_of_a_figure(runs, kind):
    assert render(loss_compute(runs, "model"), kind) == render(loss_compute(runs, "model"), kind)


def test_the_users_own_settings_do_not_reach_the_figures(runs):
    plain = render(loss_compute(runs, "model"), "svg")
    with mpl.rc_context({"font.size": 30, "text.usetex": True, "axes.facecolor": "red"}):
        assert render(loss_compute(runs, "model"), "svg") == plain


def test_arms_keep_their_look_and_can_be_told_apart_in_grey():
    variants = ["baseline", "block", "full", "mhc_lite", "a", "b", "c"]
    look = looks(variants)
    assert look["block"] == looks(["full", "block"])["block"]
    assert len({x.marker for x in look.values()}) == len(variants)
    assert len({x.dashes for x in look.values()}) == len(variants)
    assert len({x.colour for x in look.values()}) == len(variants)


def test_an_unknown_arm_has_a_look_by_its_name_and_not_by_its_place():
    strangers = ["layer_scale", "rezero", "keel", "deepnorm", "siamese"]
    look = looks(strangers)
    assert looks(reversed(strangers)) == look
    assert len(set(look.values())) == len(strangers)
    alone = [looks([name])[name] for name in map(str, range(40))]
    assert len(set(alone)) == len(strangers)  # every look of the set is somebody's
    assert looks(["a", "block", "b"])["a"] == looks(["a"])["a"]


def test_arms_named_after_a_number_are_shades_of_what_they_change():
    """Any block size is a blue of Block's hue; those of a sweep differ from each other and from Block's other arms."""
    sizes = [f"block_size_{s}" for s in (1, 2, 3, 4, 8, 16, 32, 64, 1024)]
    hues = [colorsys.rgb_to_hls(*to_rgb(look.colour))[0] for look in looks([*sizes, "block"]).values()]
    assert hues == pytest.approx([hues[-1]] * len(hues), abs=0.01)
    look = looks([*sizes[1:8], "block", "block_heads", "block_no_key_norm"])
    assert len({x.colour for x in look.values()}) == len(look)
    assert looks(["full_window_8", "full_window"])["full_window_8"] == looks(["full_window"])["full_window"]


def test_axis_units_need_no_exponent():
    for ledger, largest, label in (
        ("model", 5 * PFLOPS_DAY, "PFLOP/s-days"),
        ("model", 3e15, "10\u00b9\u2075 FLOPs"),
        ("seconds", 30, "seconds"),
        ("seconds", 600, "minutes"),
        ("seconds", 9000, "hours"),
    ):
        unit = axis_unit(ledger, largest)
        assert unit.label == label
        assert 0.01 <= largest / unit.scale < 1000


def test_a_ledger_with_too_few_sizes_still_has_a_figure(planted, table):
    rows = planted({"block": 1.25})
    for row in rows[:2] + rows[4:6]:
        row["seconds"] = row["flops_model"] / 1e15
    runs = load(table(rows))
    figure = loss_compute(runs, "seconds")
    (axes,) = figure.axes
    assert flaws(figure) == []
    assert not [line for line in axes.get_lines() if line.get_gid() == "fit"]


def test_curves_that_are_not_ours_are_one_clear_line(tmp_path):
    assert load_curves(tmp_path) is None
    (tmp_path / "curves.csv").write_text("run,tokens\na,1\n")
    with pytest.raises(TableError, match="no column variant"):
        load_curves(tmp_path)
    (tmp_path / "curves.csv").write_text(csv_text(CURVE_COLUMNS, [{"run": "a", "tokens": "many"}]))
    with pytest.raises(TableError, match="write it again with collect"):
        load_curves(tmp_path)
