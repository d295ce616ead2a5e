"""How long a fit of L(N, D) takes: 240 runs from 4,500 starts, and 4,000 bootstrap replicates of it.

    OMP_NUM_THREADS=1 python benchmarks/fits.py [--rows 240] [--replicates 4000] [--contender 30]

Beside it, on the same objective and gradient, what a user would pick instead: scipy's BFGS, one start after the other,
timed on every 150th start (`--contender` of them, 0 for none) and scaled to all. Seconds are of processor time, which
a busy machine changes less, and of the clock.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from scipy.optimize import minimize

from analysis.chinchilla import evaluate
from analysis.size_tokens import SizeTokensLaw, bootstrap, fit, loss_at, starts_of_the_replication

TRUE = np.array([math.log(480), math.log(2100), math.log(1.82), 0.35, 0.37])


class Clock:
    def __enter__(self) -> Clock:
        self.started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter(), time.process_time()
        self.wall, self.processor = (end - start for start, end in zip(self.started, now))


def runs(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes and compute spread like the 240 runs of Hoffmann et al., with residuals like theirs."""
    generator = np.random.default_rng(0)
    size = np.exp(generator.uniform(math.log(5e7), math.log(1.6e10), count))
    tokens = 20 * size * np.exp(generator.normal(0, 1.5, count))
    loss = loss_at(TRUE, size, tokens) * np.exp(0.005 * generator.standard_t(3, count))
    return size, tokens, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--replicates", type=int, default=4000)
    parser.add_argument("--contender", type=int, default=30)
    asked = parser.parse_args()

    with Clock() as clock:
        law = fit(*runs(asked.rows))
    c = law.certificate
    print(f"{asked.rows} rows, {c.starts} starts: {clock.processor:.2f} s of processor time, {clock.wall:.2f} s")
    print(f"  {c.agreeing} starts agree to {c.disagreement:.0e}; gradient {c.gradient:.0e}")
    with Clock() as clock:
        sample = bootstrap(law, asked.replicates)
    print(f"{asked.replicates} replicates: {clock.processor:.2f} s of processor time, {clock.wall:.2f} s")
    print(f"  {sample.failed} failed; alpha {law.named['alpha']:.4f}, interval {sample.intervals['alpha']}")
    if asked.contender:
        compare(law, asked.contender)


def compare(law: SizeTokensLaw, count: int) -> None:
    rows = law.rows
    starts = rows.centred(starts_of_the_replication())
    every = starts[:: max(1, len(starts) // count)]
    least = evaluate(rows, law.centred).value[0]

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        at = evaluate(rows, parameters[None])
        return at.value[0], at.gradient[0]

    with Clock() as clock:
        ends = [minimize(objective, start, jac=True, method="BFGS") for start in every]
    scaled = clock.processor * len(starts) / len(every)
    near = sum(end.fun <= least * 1.001 for end in ends)
    print(f"scipy BFGS, {len(every)} starts: {clock.processor:.2f} s, so {scaled:.0f} s for {len(starts)}")
    print(f"  {near} within .1 % of the least objective; lowest / ours = {min(e.fun for e in ends) / least:.9f}")


if __name__ == "__main__":
    main()
