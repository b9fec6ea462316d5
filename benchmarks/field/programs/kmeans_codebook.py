"""Acoustic units as in HuBERT's first stage: k-means over frames' features of a folder of shards, then pseudo labels per file."""
import argparse
import os
import tempfile
import time

import numpy as np
import torch


def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--feat_dir", default=None)
    parser.add_argument("--n_clusters", type=int, default=500)
    parser.add_argument("--n_init", type=int, default=8)
    parser.add_argument("--max_iter", type=int, default=100)
    parser.add_argument("--tol", type=float, default=1e-7)
    parser.add_argument("--chunk", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def make_shards(folder, shards=8, files=60, dim=256):
    """Shards as dumped by a feature extractor: frames of all files in one array, and the files' lengths."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((800, dim)).astype(np.float32)
    for shard in range(shards):
        lengths = rng.integers(200, 700, files)
        units = np.repeat(rng.integers(0, 800, lengths.sum() // 5 + 1), 5)[:lengths.sum()]
        frames = means[units] + 0.7 * rng.standard_normal((lengths.sum(), dim), dtype=np.float32)
        np.save(os.path.join(folder, f"train_{shard}_{shards}.npy"), frames)
        np.savetxt(os.path.join(folder, f"train_{shard}_{shards}.len"), lengths, fmt="%d")


def load_features(folder):
    feats, lengths = [], []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".npy"):
            feats.append(np.load(os.path.join(folder, name), mmap_mode="r"))
            lengths.extend(np.loadtxt(os.path.join(folder, name.replace(".npy", ".len")), dtype=int, ndmin=1).tolist())
    feats = torch.from_numpy(np.concatenate(feats))
    return feats, lengths


class KMeans:
    def __init__(self, n_clusters, max_iter, tol, chunk):
        self.n_clusters, self.max_iter, self.tol, self.chunk = n_clusters, max_iter, tol, chunk

    def init_centroids(self, x):
        """k-means++ on a sample of the frames"""
        x = x[torch.randperm(len(x), device=x.device)[:20000]]
        centroids = [x[0]]
        closest = torch.full((len(x),), float("inf"), device=x.device)
        for _ in range(self.n_clusters - 1):
            d = ((x - centroids[-1]) ** 2).sum(1)
            closest = torch.minimum(closest, d)
            centroids.append(x[torch.multinomial(closest / closest.sum(), 1).item()])
        return torch.stack(centroids)

    def assign(self, x, centroids):
        labels, distances = [], []
        for chunk in x.split(self.chunk):
            d = torch.cdist(chunk, centroids)
            dist, label = d.min(dim=1)
            labels.append(label)
            distances.append(dist)
        return torch.cat(labels), torch.cat(distances)

    def update(self, x, labels, centroids):
        new_centroids = torch.zeros_like(centroids)
        for k in range(self.n_clusters):
            members = x[labels == k]
            if len(members) > 0:
                new_centroids[k] = members.mean(dim=0)
            else:
                new_centroids[k] = x[torch.randint(len(x), (1,)).item()]
        return new_centroids

    def fit(self, x, run):
        centroids = self.init_centroids(x)
        for it in range(self.max_iter):
            labels, distances = self.assign(x, centroids)
            new_centroids = self.update(x, labels, centroids)
            shift = ((new_centroids - centroids) ** 2).sum(1).mean().item()
            inertia = (distances ** 2).mean().item()
            centroids = new_centroids
            if it % 10 == 0:
                used = len(torch.unique(labels))
                print(f"  run {run} it {it:3d}  inertia {inertia:.5f}  shift {shift:.3e}  used {used}", flush=True)
            if shift < self.tol:
                print(f"  run {run} converged after {it + 1} iterations")
                break
        return centroids, inertia


def dump_labels(path, labels, lengths):
    with open(path, "w") as f:
        for part in labels.cpu().split(lengths):
            f.write(" ".join(map(str, part.tolist())) + "\n")


def main(args):
    torch.manual_seed(args.seed)
    folder = args.feat_dir
    if folder is None:
        folder = tempfile.mkdtemp(prefix="km_")
        make_shards(folder)
    feats, lengths = load_features(folder)
    feats = feats.cuda()
    feats = (feats - feats.mean(0)) / feats.std(0)
    print(f"{len(feats)} frames of {len(lengths)} files, {feats.shape[1]} dims")
    km = KMeans(args.n_clusters, args.max_iter, args.tol, args.chunk)
    best, best_inertia = None, float("inf")
    for run in range(args.n_init):
        start = time.time()
        centroids, inertia = km.fit(feats, run)
        print(f"run {run}: inertia {inertia:.5f} ({time.time() - start:.1f} s)")
        if inertia < best_inertia:
            best, best_inertia = centroids, inertia
    labels, _ = km.assign(feats, best)
    dump_labels(os.path.join(folder, "train.km"), labels, lengths)
    np.save(os.path.join(folder, "centroids.npy"), best.cpu().numpy())
    print(f"best inertia {best_inertia:.5f}, saved to {folder}")


if __name__ == "__main__":
    main(get_parser().parse_args())
