"""The figures beside the multiplier, of the paper's numbers and of runs: legible, and of what the numbers say."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from legibility import flaws, texts

from analysis.collect import CURVE_COLUMNS, csv_text
from analysis.curves import largest, load_curves, load_training
from analysis.design import Design, design
from analysis.dynamics import load_depth, load_dynamics, load_weights
from analysis.errors import TableError
from analysis.figures import (
    ablation_bars,
    by_depth,
    depth_weights,
    draw_all,
    loss_by_block_size,
    loss_gap,
    render,
    shape_grid,
    training_curves,
)
from analysis.figures.crowd import GREY
from analysis.figures.mixing import mixing_map
from analysis.figures.style import looks
from analysis.mixing import Mixing
from analysis.runs import read_runs

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
ABLATIONS = (
    *("baseline", "denseformer", "mhc", "full", "full_input_query", "full_scalars", "full_sigmoid"),
    *("full_no_key_norm", "full_window", "block", "block_heads", "block_no_key_norm"),
)
DYNAMICS = (
    *("run", "variant", "size", "seed", "tokens", "sublayer", "kind", "output_rms", "hidden_rms", "gradient_norm"),
    *("entropy", "embedding_share", "predecessor_share", "weights"),
)


def losses(by_arm, size="a", seeds=1, **more):
    """Rows of runs.csv at one size."""
    return [
        {"run": f"{arm}-{size}-s{s}-h", "size": size, "variant": arm, "seed": s, "flops_model": 1e15, "params": 1e6}
        | {"val_loss": loss + s / 1000, **more}
        for arm, loss in by_arm.items()
        for s in range(seeds)
    ]


def drawn(figure):
    return {t.get_text() for t in texts(figure)}


def dynamics_rows(variants, layers, tokens=(0, 1000)):
    """Rows of dynamics.csv: magnitudes that grow with depth, and weights with 0.5 on the newest source."""
    for variant, at, sublayer in itertools.product(variants, tokens, range(2 * layers)):
        others = sublayer if variant == "full" else math.ceil(sublayer / 4)
        weights = [0.5 / others] * others + [0.5] if others else [1.0]
        yield {
            "run": f"{variant}-a-s0-h",
            "variant": variant,
            "size": "a",
            "seed": 0,
            "tokens": at,
            "sublayer": sublayer,
            "kind": "mlp" if sublayer % 2 else "attention",
            "output_rms": 1 + at * 1.5**sublayer,
            "hidden_rms": 2.0,
            "gradient_norm": 3e-7 / (1 + sublayer),
            "weights": "" if variant == "baseline" else json.dumps(weights),
        }


@pytest.fixture
def folder(table):
    """`folder(rows, dynamics)`: a results folder with runs.csv and dynamics.csv."""

    def write(rows, dynamics):
        path = table(rows)
        (path / "dynamics.csv").write_text(csv_text(DYNAMICS, dynamics))
        return path

    return write


def test_the_ablations_of_the_paper_are_sorted_bars_from_the_baseline():
    runs = read_runs(PUBLISHED / "ablations.csv")
    assert design(runs) is Design.ARMS
    figure = ablation_bars(runs)
    assert flaws(figure) == []
    (axes,) = figure.axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == pytest.approx(1.731)
    assert all(bar.get_x() == 1.766 for bar in axes.patches)
    assert axes.patches[-1].get_facecolor()[:3] == pytest.approx((0x8F / 255, 0x3F / 255, 0))
    assert {"1.731", "1.767", "10 of 11 arms end below the baseline, 1.766", "Full (sigmoid)"} <= drawn(figure)


@pytest.mark.parametrize("arms", [2, 11, 25])
def test_bars_are_legible_for_any_number_of_arms(table, arms):
    names = [*ABLATIONS[1:], *(f"an arm with a rather long name {i}" for i in range(14))][:arms]
    runs = read_runs(table(losses({"baseline": 3.0} | {name: 3.01 - i / 500 for i, name in enumerate(names)}, seeds=2)))
    figure = ablation_bars(runs)
    assert flaws(figure) == []
    assert "3.0005" in next(t for t in drawn(figure) if "arms end" in t)


def test_block_sizes_of_the_paper_are_over_a_logarithmic_axis_with_full_at_one():
    runs = read_runs(PUBLISHED / "block_size.csv")
    assert design(runs) is Design.BLOCK_SIZES
    figure = loss_by_block_size(runs)
    assert flaws(figure) == []
    (axes,) = figure.axes
    baseline, curve, full, *others = axes.get_lines()
    assert set(baseline.get_ydata()) == {1.766}
    assert list(curve.get_xdata()) == [1, 2, 4, 8, 16, 32]
    np.testing.assert_allclose(curve.get_ydata(), [1.737, 1.746, 1.746, 1.748, 1.753, 1.757])
    assert (full.get_marker(), {line.get_marker() for line in others}) == ("^", {"s"})
    assert axes.get_xscale() == "log"
    assert {"1", "2", "4", "8", "16", "32", "Every block size ends below the baseline"} <= drawn(figure)


def test_a_block_size_above_the_baseline_is_said(table):
    runs = read_runs(table(losses({"baseline": 3.0, "block_size_2": 2.9, "block_size_64": 3.1})))
    figure = loss_by_block_size(runs)
    assert flaws(figure) == []
    assert "1 of 2 block sizes end below the baseline" in drawn(figure)
    assert "Full AttnRes" not in drawn(figure)


def test_the_shape_grids_of_the_paper_print_every_cell_and_frame_the_best():
    runs = read_runs(PUBLISHED / "shape_grid.csv")
    assert design(runs) is Design.SHAPES
    figure = shape_grid(runs)
    assert flaws(figure) == []
    figure.set_dpi(250)  # as it is written; at fewer dots, digits are wider than they should be
    figure.draw_without_rendering()
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("Baseline:\nbest at 60, 0.3", "AttnRes:\nbest at 45, 0.3")
    for axes, place in ((left, (2.5, 3.5)), (right, (1.5, 3.5))):
        (frame,) = (patch for patch in axes.patches if patch.get_gid() == "best")
        assert frame.get_xy() == place
        assert len(axes.texts) == 25
        (best,) = (text for text in axes.texts if text.get_fontweight() == "bold")
        room = frame.get_window_extent().width - best.get_window_extent().width
        assert room > 2 * frame.get_linewidth() * figure.dpi / 72  # half a line's width is inside, on either side
    assert left.images[0].get_clim() == right.images[0].get_clim() == (1.802, 2.017)
    assert sum(t.get_fontsize() >= 6 for t in left.texts) == 24
    assert "validation loss (nats per token)" in drawn(figure)


@pytest.mark.parametrize(("arms", "cells"), [(("block",), [5, 5]), (("block", "full"), [6, 5])])
def test_a_cell_without_a_pair_is_white(table, arms, cells):
    rows = [
        row
        for width, heads in itertools.product((4, 8, 16), (0.3, 0.5))
        for row in losses(dict.fromkeys(("baseline", *arms), 3 + width / 100), size=f"d{width}-h{heads}")
        if (width, heads, row["variant"]) != (8, 0.5, "block")
    ]
    figure = shape_grid(read_runs(table(rows)))
    assert flaws(figure) == []
    assert [len(axes.texts) for axes in figure.axes[:2]] == cells


def test_the_papers_training_shows_the_gap_at_every_point():
    figure = loss_gap(load_training(PUBLISHED))
    assert flaws(figure) == []
    upper, lower = figure.axes
    np.testing.assert_allclose(upper.get_lines()[0].get_xdata()[[0, -1]], [83.88608, 1000], rtol=1e-5)
    gap = lower.get_lines()[0].get_ydata()
    assert (len(gap), gap[0], gap[-1]) == (12, pytest.approx(0.0091), pytest.approx(0.0183))
    assert {"Block AttnRes ends 0.018 lower", "tokens (billion); size 48B"} <= drawn(figure)


def test_the_gap_of_our_runs_is_of_the_largest_size_and_the_mean_of_seeds(table):
    rows = losses({"baseline": 3.0, "block": 2.9}, "small") + losses({"baseline": 2.0, "block": 1.9}, "large", seeds=2)
    for row in rows:
        row["params"] *= 9 if row["size"] == "large" else 1
    path = table(rows)
    points = [
        {**row, "tokens": 100 * k, "train_loss": 9.0, "val_loss": row["val_loss"] + 1 / k}
        for row in rows
        for k in range(1, 9)
    ]
    (path / "curves.csv").write_text(csv_text(CURVE_COLUMNS, [{k: p[k] for k in CURVE_COLUMNS} for p in points]))
    training = largest(read_runs(path), load_curves(path))
    assert (training.size, training.column, list(training.loss)) == ("large", "val_loss", ["baseline", "block"])
    np.testing.assert_allclose(training.loss["block"], [1.9005 + 1 / k for k in range(1, 9)])
    assert flaws(loss_gap(training)) == []


@pytest.fixture
def trained(table):
    """`trained(arms, points, validated)`: a results folder of runs, each arm's loss 0.01 below the one before."""

    def write(arms, points, validated):
        rows = losses({arm: 3 - i / 100 for i, arm in enumerate(ABLATIONS[:arms])}, "a size with a rather long name")
        curves = [
            {**row, "tokens": 1e6 * k, "train_loss": row["val_loss"] + 9 / k, "val_loss": ""}
            | ({"val_loss": row["val_loss"] + 9 / k} if validated else {})
            for row in rows
            for k in range(1, points)
        ]
        path = table(rows)
        text = csv_text(CURVE_COLUMNS, [{k: p.get(k) for k in CURVE_COLUMNS} for p in curves])
        (path / "curves.csv").write_text(text)
        return path

    return write


def training_of(path):
    return largest(read_runs(path), load_curves(path))


@pytest.mark.parametrize("arms", [2, 7, 12])
@pytest.mark.parametrize("points", [9, 99])
def test_the_gap_is_legible_for_many_arms_and_points(trained, arms, points):
    figure = loss_gap(training_of(trained(arms, points, validated=False)))
    assert flaws(figure) == []
    upper, lower = figure.axes
    assert (len(upper.get_lines()), len(lower.get_lines())) == (arms, arms)  # the gap has a line at 0
    assert "training loss, running mean\n(nats per token)" in drawn(figure)


@pytest.mark.parametrize(
    ("arms", "says"), [(2, "DenseFormer ends 0.010 lower"), (4, "3 of 3 arms end below the baseline")]
)
def test_a_gap_by_training_loss_says_so_in_its_title(trained, arms, says):
    validated, not_validated = (loss_gap(training_of(trained(arms, 9, v))).axes[0] for v in (True, False))
    assert validated.get_title() == says
    assert not_validated.get_title() == f"{says}\nby training loss"


def test_of_many_arms_the_best_and_the_worst_have_names_and_the_others_are_grey(trained):
    """ABLATIONS are in the order of their losses here, the baseline's the highest."""
    path = trained(12, 9, validated=True)
    runs, curves = read_runs(path), load_curves(path)
    look = looks(ABLATIONS)
    for figure in (loss_gap(largest(runs, curves)), training_curves(runs, curves)):
        assert flaws(figure) == []
        lines = figure.axes[0].get_lines()
        assert all(line.get_marker() in ("", "None") for line in lines)
        shown = {look[arm].colour for arm in (ABLATIONS[0], *ABLATIONS[1:3], *ABLATIONS[-3:])}
        assert {line.get_color() for line in lines} - {GREY.colour} == shown
        grey = [line for line in lines if line.get_color() == GREY.colour]
        assert len(grey) == 6
        assert max(line.get_linewidth() for line in grey) < 1
        named = {"Baseline", "Block (no key norm)", "Block (heads)", "Block AttnRes", "DenseFormer", "mHC", "6 others"}
        assert {text.get_text() for text in legend_of(figure)} == named


def legend_of(figure):
    (legend,) = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return legend.get_texts()


def test_the_papers_magnitudes_by_depth_are_on_logarithmic_axes():
    figure = by_depth(load_depth(PUBLISHED))
    assert flaws(figure) == []
    output, gradient = figure.axes
    assert (output.get_yscale(), gradient.get_yscale()) == ("log", "log")
    assert len(output.get_lines()[0].get_xdata()) == 27
    assert gradient.get_ylabel() == "gradient norm\n(10⁻⁵)"  # whose unit the paper does not say
    assert gradient.get_lines()[0].get_ydata()[0] == pytest.approx(2.4663)
    assert [title.splitlines()[0] for title in titles(figure)] == [
        "range: Baseline 304x, Block AttnRes 27x",
        "range: Baseline 36x, Block AttnRes 8.3x",
    ]
    assert [title.splitlines()[1] for title in titles(figure)] == [
        "from layer 1: 202x, 9.1x",
        "from layer 1: 27x, 4.4x",
    ]


def titles(figure):
    return [axes.get_title().replace("\N{MULTIPLICATION SIGN}", "x") for axes in figure.axes]


def test_our_magnitudes_are_of_the_last_tokens(folder):
    arms = ("baseline", "block", "full")
    path = folder(losses(dict.fromkeys(arms, 3.0)), dynamics_rows(arms, 3))
    depth, _ = load_dynamics(read_runs(path))
    figure = by_depth(depth)
    assert flaws(figure) == []
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "linear", "linear"]
    assert figure.axes[-1].get_xlabel() == "Transformer layer, from 0"
    assert figure.axes[-1].get_ylabel() == "gradient norm\n(10⁻⁷ nats per token)"
    lines = figure.axes[0].get_lines()
    attention, mlp = lines[:3], lines[3:]
    for drawn_lines, first in ((attention, 0), (mlp, 1)):
        for line in drawn_lines:
            assert line.get_xdata().tolist() == [0, 1, 2]
            np.testing.assert_allclose(
                line.get_ydata() * 1000, [1 + 1000 * 1.5**i for i in (first, first + 2, first + 4)]
            )
    assert {line.get_marker() for line in attention} == {"None"}
    assert {"Baseline", "MLP", "attention"} <= drawn(figure)


def test_one_sublayer_apart_does_not_decide_the_range_that_a_title_states(folder):
    """The first attention's gradient was 48 times the rest in a run that is even over layers otherwise."""
    rows = list(dynamics_rows(("baseline", "block"), 4))
    for row in rows:
        row["gradient_norm"] = 0.15 if (row["variant"], row["sublayer"]) == ("baseline", 0) else 0.003
    depth, _ = load_dynamics(read_runs(folder(losses({"baseline": 3.0, "block": 2.9}), rows)))
    assert titles(by_depth(depth))[-1] == "range (MLP): Baseline 1.0x, Block AttnRes 1.0x\nfrom layer 1: 1.0x, 1.0x"


@pytest.mark.parametrize("layers", [2, 12, 24, 61])
def test_layers_have_ticks_within_the_data_only(folder, layers):
    arms = ("baseline", "block")
    depth, _ = load_dynamics(
        read_runs(folder(losses(dict.fromkeys(arms, 3.0)), dynamics_rows(arms, layers, tokens=(0,))))
    )
    figure = by_depth(depth)
    assert flaws(figure) == []
    figure.draw_without_rendering()
    ticks = figure.axes[-1].get_xticks()
    assert len(ticks) >= 2
    assert (min(ticks), max(ticks) <= layers - 1) == (0, True)


def test_the_papers_weights_are_two_heat_maps_with_one_scale():
    weights = load_weights(PUBLISHED)
    assert list(weights) == ["block"]  # of Full there are examples only
    figure = depth_weights("block", weights["block"])
    assert flaws(figure) == []
    left, right, bar = figure.axes
    assert left.images[0].get_clim() == right.images[0].get_clim()
    shown = left.images[0].get_array()
    assert shown.shape == (16, 9)
    assert shown.mask[0].tolist() == [False] + [True] * 8
    assert shown[1, :2].tolist() == [0.764, 0.236]
    assert right.images[0].get_array()[15, 8] == 0.218
    assert bar.get_ylabel() == "weight"
    assert "before attention:\nnewest source 0.38" in drawn(figure)


@pytest.mark.parametrize("layers", [2, 16, 40])
def test_our_weights_are_legible_at_any_depth_and_name_the_newest_source(folder, layers):
    arms = ("baseline", "block", "full")
    path = folder(losses(dict.fromkeys(arms, 3.0)), dynamics_rows(arms, layers))
    _, weights = load_dynamics(read_runs(path))
    assert list(weights) == ["block", "full"]
    assert weights["full"]["mlp"].shape == (layers, 2 * layers)
    for arm, found in weights.items():
        figure = depth_weights(arm, found)
        assert flaws(figure) == []
        assert "before MLP:\nnewest source 0.50" in drawn(figure)


def mixing_of(mean, variant="block"):
    return Mixing("run", variant, np.tril(mean), np.zeros_like(mean), np.array([2]))


@pytest.mark.parametrize("reads", [3, 17, 65])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_mixing_matrix_is_legible_at_any_depth_with_or_without_signs(reads, sign):
    figure = mixing_map(
        mixing_of(np.fromfunction(lambda i, j: (1.0 + j) * sign**j, (reads, reads)), "hyper_connections")
    )
    assert flaws(figure) == []
    axes, bar = figure.axes
    assert axes.images[0].get_clim() == ((0, 1) if sign > 0 else (-1, 1))
    assert bar.get_ylabel() == "weight / largest of its row"
    assert "Hyper-connections: semiseparable rank 2" in drawn(figure)


def test_a_row_of_large_weights_leaves_the_others_to_be_seen():
    """A read is normed, so that only the ratios within a row matter: streams can reach hundreds in the last."""
    mean = np.array([[2.0, 0, 0], [1.0, -4.0, 0], [450.0, 90.0, -225.0]])
    shown = mixing_map(mixing_of(mean)).axes[0].images[0].get_array()
    np.testing.assert_allclose(shown.filled(0), [[1, 0, 0], [0.25, -1, 0], [1, 0.2, -0.5]])
    assert shown.mask.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def test_dynamics_of_runs_that_did_not_finish_are_not_drawn(folder):
    arms = ("baseline", "block", "full")
    rows = losses(dict.fromkeys(arms, 3.0))
    for row in rows:
        row["status"] = "running" if row["variant"] == "block" else "finished"
    depth, weights = load_dynamics(read_runs(folder(rows, dynamics_rows(arms, 2))))
    assert list(depth.magnitudes["output_rms"]) == ["baseline", "full"]
    assert list(weights) == ["full"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text.replace("sublayer", "layer", 1), "no column sublayer"),
        (lambda text: text.replace("[0.", "[oops"), "weights that are no list of numbers"),
        (lambda text: text.replace("2.0", "two", 1), "write it again with collect"),
    ],
)
def test_dynamics_that_are_not_ours_are_one_clear_line(folder, analysis, spoil, says):
    arms = ("baseline", "block", "full")
    path = folder(losses(dict.fromkeys(arms, 3.0)), dynamics_rows(arms, 2))
    (path / "dynamics.csv").write_text(spoil((path / "dynamics.csv").read_text()))
    with pytest.raises(TableError, match=says):
        load_dynamics(read_runs(path))
    status, _, err = analysis("plots", path)
    assert (status, err.count("\n")) == (2, 1)


def test_every_scheme_and_ablation_has_a_look_of_its_own_for_colour_blind_readers():
    known = looks([*ABLATIONS, "highway", "hyper_connections", "mhc_lite"])
    for part in ("colour", "marker", "dashes"):
        assert len({getattr(look, part) for look in known.values()}) == len(known)
    schemes = [known[s].colour for s in known if s not in ABLATIONS[4:9] + ABLATIONS[10:]]
    assert len(schemes) == 8
    for one, other in itertools.combinations(schemes, 2):
        assert min(np.linalg.norm(seen(one, eye) - seen(other, eye)) for eye in EYES) > 15


# Colours in linear RGB as protanopes, deuteranopes and tritanopes see them (Machado, Oliveira and Fernandes 2009).
EYES = (
    np.eye(3),
    np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
)


def seen(colour, eye):
    """CIELAB of a hexadecimal colour; a distance of 2 is about the least that can be seen."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.clip(eye @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_a_figure_of_the_papers_has_the_same_bytes_twice():
    weights = load_weights(PUBLISHED)["block"]
    assert render(depth_weights("block", weights), "svg") == render(depth_weights("block", weights), "svg")


def test_a_table_of_arms_is_drawn_and_reported_without_a_multiplier(table, analysis):
    path = table(losses({"baseline": 3.0, "block": 2.9, "full": 2.8}))
    status, _, err = analysis("report", path)
    assert (status, err) == (0, "")
    text = (path / "report.md").read_text()
    assert "**Full AttnRes has the lowest loss of the arms, 0.2000 below the baseline's.**" in text
    assert "(figures/ablations.png)" in text
    assert "With one seed" in text
    assert "data:image/png" in (path / "report.html").read_text()
    status, _, err = analysis("report", path, "--claim", "1.25")
    assert (status, err.count("\n")) == (2, 1)
    assert "no ladder of sizes" in err
    status, _, err = analysis("multiplier", path)
    assert status == 2


def test_a_ladder_draws_nothing_of_other_designs(planted, table, tmp_path):
    runs = read_runs(table(planted({"block": 1.25, "full": 1.3}, noise=0.001)))
    assert design(runs) is Design.LADDER
    assert not {path.stem for path in draw_all(runs, None, tmp_path)} & {"ablations", "block_size", "shape_grid"}


def test_too_few_sizes_for_anything_is_the_ladders_own_error(table, analysis):
    path = table(losses({"baseline": 3.0, "block": 2.9}))
    for verb in ("plots", "report"):
        status, _, err = analysis(verb, path)
        assert status == 2
        assert "1 paired sizes and a fit needs 3" in err
