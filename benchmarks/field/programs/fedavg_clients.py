"""Federated averaging with a proximal term (FedProx), simulated on one GPU: handwritten digits of many writers."""
import argparse
import copy
import time
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class FedConfig:
    num_clients: int = 64
    clients_per_round: int = 10
    samples_per_client: int = 128
    local_epochs: int = 1
    local_batch: int = 32
    local_lr: float = 0.05
    momentum: float = 0.9
    mu: float = 0.01
    rounds: int = 50
    num_classes: int = 62
    test_samples: int = 1024
    seed: int = 0
    device: str = "cuda"


class WriterDataset(Dataset):
    """Images of one writer: each class has a pattern, each writer another slant and noise; classes are skewed."""

    def __init__(self, patterns: np.ndarray, size: int, seed: int, alpha: float = 0.5):
        rng = np.random.default_rng(seed)
        share = rng.dirichlet(np.full(len(patterns), alpha))
        self.labels = rng.choice(len(patterns), size, p=share)
        shift = rng.integers(-3, 4)
        images = np.roll(patterns[self.labels], shift, axis=2) + 0.3 * rng.standard_normal((size, 28, 28))
        self.images = (np.clip(images, 0, 1) * 255).astype(np.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i]).float() / 255
        image = (image - 0.1307) / 0.3081
        return image.unsqueeze(0), int(self.labels[i])


class FemnistCNN(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 49, 256), nn.ReLU(), nn.Linear(256, num_classes))

    def forward(self, x):
        return self.head(self.features(x))


class Client:
    def __init__(self, cid: int, dataset: WriterDataset, cfg: FedConfig):
        self.cid, self.dataset, self.cfg = cid, dataset, cfg
        self.train_accuracy: list[float] = []

    def proximal(self, model: nn.Module, anchor: nn.Module) -> torch.Tensor:
        distance = torch.zeros(1, device=self.cfg.device)
        for w, w0 in zip(model.parameters(), anchor.parameters()):
            distance += torch.norm(w - w0.detach()) ** 2
        return 0.5 * self.cfg.mu * distance.squeeze()

    def fit(self, global_model: nn.Module) -> tuple[OrderedDict, int, float]:
        cfg = self.cfg
        model = copy.deepcopy(global_model).to(cfg.device)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=cfg.local_lr, momentum=cfg.momentum)
        loader = DataLoader(self.dataset, batch_size=cfg.local_batch, shuffle=True)
        total, seen = 0.0, 0
        for _ in range(cfg.local_epochs):
            for x, y in loader:
                x, y = x.to(cfg.device), y.to(cfg.device)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y) + self.proximal(model, global_model)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                total += loss.item() * len(y)
                seen += len(y)
        self.train_accuracy.append(self.evaluate(model))
        state = OrderedDict((k, v.cpu()) for k, v in model.state_dict().items())
        return state, len(self.dataset), total / seen

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Accuracy on its own data after local training (kept for plots of fairness)."""
        model.eval()
        right = 0
        for x, y in DataLoader(self.dataset, batch_size=64):
            right += (model(x.to(self.cfg.device)).argmax(1).cpu() == y).sum().item()
        return right / len(self.dataset)


class Server:
    def __init__(self, cfg: FedConfig):
        self.cfg = cfg
        rng = np.random.default_rng(cfg.seed)
        patterns = (rng.random((cfg.num_classes, 7, 7)) > 0.6).astype(float).repeat(4, 1).repeat(4, 2)
        self.clients = [Client(i, WriterDataset(patterns, cfg.samples_per_client, i + 1), cfg)
                        for i in range(cfg.num_clients)]
        test = WriterDataset(patterns, cfg.test_samples, 10_000, alpha=100.0)
        self.test_loader = DataLoader(test, batch_size=128)
        self.model = FemnistCNN(cfg.num_classes).to(cfg.device)
        self.rng = rng

    def aggregate(self, results: list[tuple[OrderedDict, int, float]]) -> None:
        n = sum(size for _, size, _ in results)
        average = OrderedDict()
        for key in results[0][0]:
            average[key] = sum(state[key] * (size / n) for state, size, _ in results)
        self.model.load_state_dict(average)

    @torch.no_grad()
    def test(self) -> float:
        self.model.eval()
        right = seen = 0
        for x, y in self.test_loader:
            x, y = x.to(self.cfg.device), y.to(self.cfg.device)
            right += (self.model(x).argmax(1) == y).sum().item()
            seen += len(y)
        return right / seen

    def round(self) -> tuple[float, float]:
        chosen = self.rng.choice(len(self.clients), self.cfg.clients_per_round, replace=False)
        results = [self.clients[i].fit(self.model) for i in chosen]
        self.aggregate(results)
        return float(np.mean([loss for _, _, loss in results])), self.test()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in vars(FedConfig()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    cfg = FedConfig(**vars(parser.parse_args()))
    torch.manual_seed(cfg.seed)
    server = Server(cfg)
    start = time.time()
    for r in range(cfg.rounds):
        loss, accuracy = server.round()
        if r % 5 == 0:
            print(f"round {r:3d}  local loss {loss:.3f}  test accuracy {accuracy:.3f}  {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
