#!/usr/bin/env python3
"""Pairwise registration of lidar scans for the pose graph (point-to-plane ICP on the GPU).

Every scan is registered to the two scans before it; the relative poses and their information matrices go to the optimizer (g2o file).
Scans are simulated in a street of boxes until the bag files are converted.
"""
import argparse
import time

import numpy as np
import torch

ap = argparse.ArgumentParser()
ap.add_argument("--scans", type=int, default=150)
ap.add_argument("--rays", type=int, default=64000)
ap.add_argument("--voxel", type=float, default=0.2)
ap.add_argument("--max_corr", type=float, default=0.6)
ap.add_argument("--iterations", type=int, default=16)
ap.add_argument("--knn", type=int, default=12)
ap.add_argument("--chunk", type=int, default=4096)
ap.add_argument("--out", default="")
args = ap.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
rng = np.random.default_rng(4)
torch.manual_seed(4)


# ------------------------------------------------------------------ simulated street
BOXES = np.concatenate([
    np.stack([np.array([x, side * (7 + rng.random()), 0, x + rng.uniform(5, 11), side * 14, rng.uniform(3, 12)]) for x in range(-60, 240, 12) for side in (-1, 1)]),
    np.stack([np.array([x, y, 0, x + 4.2, y + 1.8, 1.5]) for x, y in zip(rng.uniform(-60, 240, 40), rng.choice([-5.5, 3.8], 40))]),
])
BOXES = np.concatenate([np.minimum(BOXES[:, :3], BOXES[:, 3:]), np.maximum(BOXES[:, :3], BOXES[:, 3:])], axis=1)


def pose_at(t):
    """Driving along x, swaying a bit."""
    yaw = 0.08 * np.sin(0.25 * t)
    R = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    return R, np.array([0.9 * t, 0.6 * np.sin(0.2 * t), 1.8])


def simulate_scan(t, n):
    R, eye = pose_at(t)
    az, el = rng.uniform(-np.pi, np.pi, n), np.radians(rng.choice(np.linspace(-24, 8, 64), n))
    d = np.stack([np.cos(el) * np.cos(az), np.cos(el) * np.sin(az), np.sin(el)], axis=1) @ R.T
    d = torch.tensor(d, device=device)
    o = torch.tensor(eye, device=device)
    far = torch.where(d[:, 2] < -1e-3, -o[2] / d[:, 2], torch.full_like(d[:, 2], 60.0))                # ground
    near_by = BOXES[np.abs(BOXES[:, 0] - eye[0]) < 50]
    for box in torch.tensor(near_by, device=device):
        a, b = (box[:3] - o) / d, (box[3:] - o) / d
        enter, leave = torch.minimum(a, b).amax(1), torch.maximum(a, b).amin(1)
        hit = (enter < leave) & (enter > 0)
        far = torch.where(hit & (enter < far), enter, far)
    ok = far < 45
    points = d[ok] * far[ok, None] + 0.015 * torch.randn(int(ok.sum()), 3, device=device, dtype=d.dtype)
    return (points @ torch.tensor(R, device=device)).float().cpu().numpy()                                        # in the sensor's frame


# ------------------------------------------------------------------ preprocessing
def voxel_downsample(points, voxel):
    keys = torch.floor(points / voxel).long()
    _, inverse, counts = torch.unique(keys, dim=0, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), 3, device=points.device).index_add_(0, inverse, points)
    return sums / counts[:, None]


def estimate_normals(points, k):
    """Smallest eigenvector of the covariance of the neighbours."""
    normals = []
    for part in points.split(args.chunk):
        index = torch.cdist(part, points).topk(k, largest=False).indices
        near = points[index]
        centered = near - near.mean(dim=1, keepdim=True)
        cov = centered.transpose(1, 2) @ centered / k
        _, vectors = torch.linalg.eigh(cov)
        n = vectors[:, :, 0]
        n = torch.where((n * part).sum(1, keepdim=True) > 0, -n, n)           # towards the sensor
        normals.append(n)
    return torch.cat(normals)


def nearest(source, target):
    dists, indices = [], []
    for part in source.split(args.chunk):
        d, i = torch.cdist(part, target).min(dim=1)
        dists.append(d)
        indices.append(i)
    return torch.cat(dists), torch.cat(indices)


# ------------------------------------------------------------------ icp
def exp_se3(x):
    w, v = x[:3], x[3:]
    angle = np.linalg.norm(w) + 1e-12
    k = w / angle
    K = np.array([[0, -k[2], k[1]], [k[2], 0, -k[0]], [-k[1], k[0], 0]])
    T = np.eye(4)
    T[:3, :3] = np.eye(3) + np.sin(angle) * K + (1 - np.cos(angle)) * K @ K
    T[:3, 3] = v
    return T


def icp(source_raw, target_raw, guess):
    """Transform of the source into the frame of the target; also fitness, rmse and information."""
    source = voxel_downsample(torch.from_numpy(source_raw).to(device), args.voxel)
    target = voxel_downsample(torch.from_numpy(target_raw).to(device), args.voxel)
    normals = estimate_normals(target, args.knn)
    T, last = guess.copy(), np.inf
    for it in range(args.iterations):
        Td = torch.tensor(T, dtype=torch.float32, device=device)
        moved = source @ Td[:3, :3].T + Td[:3, 3]
        dist, index = nearest(moved, target)
        keep = dist < args.max_corr
        p, q, n = moved[keep], target[index[keep]], normals[index[keep]]
        residual = ((p - q) * n).sum(1)
        weight = 1 / (1 + (residual / 0.1) ** 2)                             # Cauchy
        J = torch.cat([torch.cross(p, n, dim=1), n], dim=1)
        A = (J.T @ (weight[:, None] * J)).double().cpu().numpy()
        b = (J.T @ (weight * residual)).double().cpu().numpy()
        delta = np.linalg.solve(A + 1e-6 * np.eye(6), -b)
        T = exp_se3(delta) @ T
        rmse = residual.pow(2).mean().sqrt().item()
        fitness = keep.float().mean().item()
        if abs(last - rmse) < 1e-9 and np.linalg.norm(delta) < 1e-8:
            break
        last = rmse
    return T, fitness, rmse, A


def main():
    start = time.time()
    scans = [simulate_scan(t, args.rays) for t in range(args.scans)]
    truth = [pose_at(t) for t in range(args.scans)]
    print(f"{len(scans)} scans of {np.mean([len(s) for s in scans]):.0f} points simulated in {time.time() - start:.1f} s")
    edges, errors, motion, start = [], [], np.eye(4), time.time()
    for i in range(1, len(scans)):
        for j in (i - 1, i - 2):
            if j < 0:
                continue
            guess = motion if j == i - 1 else motion @ motion
            T, fitness, rmse, information = icp(scans[i], scans[j], guess)
            if j == i - 1:
                motion = T
            (Ri, ti), (Rj, tj) = truth[i], truth[j]
            errors.append(np.linalg.norm(T[:3, 3] - Rj.T @ (ti - tj)))
            edges.append((j, i, T, information))
            if len(edges) % 10 == 0:
                print(f"{len(edges):4d} pairs, {len(scans[i])} points, fitness {fitness:.3f}, rmse {rmse:.4f}, error {np.mean(errors[-10:]):.4f} m, "
                      f"{(time.time() - start) / len(edges) * 1000:.0f} ms per pair", flush=True)
    if args.out:
        with open(args.out, "w") as f:
            for a, b, T, info in edges:
                f.write(f"EDGE_SE3_MAT {a} {b} " + " ".join(f"{v:.6f}" for v in T[:3].ravel()) + " " + " ".join(f"{v:.3f}" for v in info[np.triu_indices(6)]) + "\n")
    print(f"mean error {np.mean(errors):.4f} m over {len(edges)} pairs")


if __name__ == "__main__":
    main()
