# N-BEATS ensemble (Oreshkin et al. 2020) for the monthly part of a forecasting competition.
# Members differ in loss and seed; the submission is the median of all members, as in the paper.
# NOTE: series here are simulated, load_series() is where the csv went.
import argparse
import time
from collections import defaultdict

import numpy as np
import torch as t
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument('--n-series', type=int, default=4000)
parser.add_argument('--horizon', type=int, default=18)
parser.add_argument('--lookback', type=int, default=4, help='input is this many horizons')
parser.add_argument('--stacks', type=int, default=24)
parser.add_argument('--layers', type=int, default=4)
parser.add_argument('--width', type=int, default=512)
parser.add_argument('--batch', type=int, default=1024)
parser.add_argument('--iterations', type=int, default=300)
parser.add_argument('--repeats', type=int, default=2)
parser.add_argument('--lr', type=float, default=1e-3)
args = parser.parse_args()

DEVICE = 'cuda' if t.cuda.is_available() else 'cpu'
LOSSES = ['smape', 'mase', 'mape']
FREQ = 12


def load_series(n, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        length = int(rng.integers(60, 400))
        i = np.arange(length)
        level = rng.lognormal(7, 1) * (1 + 0.002 * rng.normal() * i)
        season = 1 + rng.uniform(0, 0.4) * np.sin(2 * np.pi * (i + rng.integers(12)) / FREQ)
        noise = np.exp(np.cumsum(rng.normal(0, 0.02, length)))
        out.append(np.maximum(level * season * noise, 10).astype(np.float32))
    return out


class TimeseriesSampler:
    """Random windows: a series, a cut point in its last part, what lies before and after."""

    def __init__(self, timeseries, insample_size, outsample_size, window_sampling_limit, batch_size):
        self.timeseries = timeseries
        self.window_sampling_limit = window_sampling_limit
        self.batch_size = batch_size
        self.insample_size = insample_size
        self.outsample_size = outsample_size

    def __iter__(self):
        while True:
            insample = np.zeros((self.batch_size, self.insample_size))
            insample_mask = np.zeros((self.batch_size, self.insample_size))
            outsample = np.zeros((self.batch_size, self.outsample_size))
            outsample_mask = np.zeros((self.batch_size, self.outsample_size))
            sampled_ts_indices = np.random.randint(len(self.timeseries), size=self.batch_size)
            for i, sampled_index in enumerate(sampled_ts_indices):
                sampled_timeseries = self.timeseries[sampled_index]
                cut_point = np.random.randint(low=max(1, len(sampled_timeseries) - self.window_sampling_limit),
                                              high=len(sampled_timeseries), size=1)[0]
                insample_window = sampled_timeseries[max(0, cut_point - self.insample_size):cut_point]
                insample[i, -len(insample_window):] = insample_window
                insample_mask[i, -len(insample_window):] = 1.0
                outsample_window = sampled_timeseries[cut_point:min(len(sampled_timeseries), cut_point + self.outsample_size)]
                outsample[i, :len(outsample_window)] = outsample_window
                outsample_mask[i, :len(outsample_window)] = 1.0
            yield insample, insample_mask, outsample, outsample_mask


# --- model
class NBeatsBlock(t.nn.Module):
    def __init__(self, input_size, horizon, layers, width):
        super().__init__()
        self.layers = t.nn.ModuleList([t.nn.Linear(input_size, width)] + [t.nn.Linear(width, width) for _ in range(layers - 1)])
        self.basis_parameters = t.nn.Linear(width, input_size + horizon)
        self.input_size = input_size

    def forward(self, x):
        for layer in self.layers:
            x = t.relu(layer(x))
        theta = self.basis_parameters(x)
        return theta[:, :self.input_size], theta[:, self.input_size:]


class NBeats(t.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = t.nn.ModuleList(blocks)

    def forward(self, x, input_mask):
        residuals = x.flip(dims=(1,))
        input_mask = input_mask.flip(dims=(1,))
        forecast = x[:, -1:]
        for block in self.blocks:
            backcast, block_forecast = block(residuals)
            residuals = (residuals - backcast) * input_mask
            forecast = forecast + block_forecast
        return forecast


# --- losses, from the paper's repository
def divide_no_nan(a, b):
    result = a / b
    result[result != result] = .0
    result[result == np.inf] = .0
    return result


def smape_loss(insample, forecast, target, mask):
    return 200 * t.mean(divide_no_nan(t.abs(forecast - target), t.abs(forecast.data) + t.abs(target.data)) * mask)


def mape_loss(insample, forecast, target, mask):
    weights = divide_no_nan(mask, target)
    return t.mean(t.abs((forecast - target) * weights))


def mase_loss(insample, forecast, target, mask):
    masep = t.mean(t.abs(insample[:, FREQ:] - insample[:, :-FREQ]), dim=1)
    masked_masep_inv = divide_no_nan(mask, masep[:, None])
    return t.mean(t.abs(target - forecast) * masked_masep_inv)


loss_fns = {'smape': smape_loss, 'mape': mape_loss, 'mase': mase_loss}


def to_tensor(array):
    return t.tensor(array, dtype=t.float32).to(DEVICE)


class Member:
    def __init__(self, loss, seed, series):
        t.manual_seed(seed)
        self.name, self.loss = f'{loss}-{seed}', loss_fns[loss]
        size = args.lookback * args.horizon
        self.model = NBeats([NBeatsBlock(size, args.horizon, args.layers, args.width) for _ in range(args.stacks)]).to(DEVICE)
        self.optimizer = t.optim.Adam(self.model.parameters(), lr=args.lr)
        self.sampler = iter(TimeseriesSampler(series, size, args.horizon, int(10 * args.horizon), args.batch))
        self.history = []

    def step(self):
        x, x_mask, y, y_mask = map(to_tensor, next(self.sampler))
        self.optimizer.zero_grad()
        forecast = self.model(x, x_mask)
        loss = self.loss(x, forecast, y, y_mask)
        if np.isnan(float(loss)):
            return
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())


def evaluate(members, train, test):
    """sMAPE of the median of all members on the last horizon."""
    size = args.lookback * args.horizon
    x, mask = np.zeros((len(train), size)), np.zeros((len(train), size))
    for i, s in enumerate(train):
        w = s[-size:]
        x[i, -len(w):], mask[i, -len(w):] = w, 1
    x, mask = to_tensor(x), to_tensor(mask)
    with t.no_grad():
        forecasts = t.stack([m.model(x, mask) for m in members]).median(dim=0).values.cpu().numpy()
    return np.mean(200 * np.abs(forecasts - test) / (np.abs(forecasts) + np.abs(test)))


def main():
    np.random.seed(0)
    series = load_series(args.n_series)
    train = [s[:-args.horizon] for s in series]
    test = np.stack([s[-args.horizon:] for s in series])
    members = [Member(loss, seed, train) for loss in LOSSES for seed in range(args.repeats)]
    print(f'{len(members)} members of {sum(p.numel() for p in members[0].model.parameters()) / 1e6:.1f} M')
    lr_decay_step = args.iterations // 3
    tic = time.time()
    for i in range(1, args.iterations + 1):
        for m in members:
            m.step()
            for group in m.optimizer.param_groups:
                group['lr'] = args.lr * 0.5 ** (i // lr_decay_step)
        if i % 25 == 0:
            by_loss = defaultdict(list)
            for m in members:
                by_loss[m.name.split('-')[0]] += m.history[-25:]
            print(f'{i:5d}  ' + '  '.join(f'{k} {np.mean(v):.3f}' for k, v in by_loss.items()) + f'  {(time.time() - tic) / i * 1000:.0f} ms')
    print(f'ensemble sMAPE {evaluate(members, train, test):.3f}')


if __name__ == '__main__':
    main()
