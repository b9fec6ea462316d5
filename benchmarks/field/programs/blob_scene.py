# Fit a blobby scene (smooth union of spheres) to photos: sphere tracing + implicit differentiation of the hit point.
# Port of my numpy toy renderer. Everything is plain functions on a dict of tensors.
import math
import os
import time

import numpy as np
import torch

device = os.environ.get("DEVICE", "cuda")

RES = int(os.environ.get("RES", 256))
N_BLOBS = 48
N_VIEWS = 24           # photos
PER_STEP = 3           # views per iteration
MARCH = 40
NEAR, FAR = 1.0, 6.0
SHARP = 24.0
ITERS = 600

rng = np.random.default_rng(3)
torch.manual_seed(3)


# ---------------------------------------------------------------- camera
def look_at(eye):
    z = -eye / np.linalg.norm(eye)
    x = np.cross(z, np.array([0.0, 1.0, 0.0]))
    x /= np.linalg.norm(x)
    return np.stack([x, np.cross(x, z), z], axis=1)


def camera_rays(eye, fov=42.0):
    s = math.tan(math.radians(fov) / 2)
    u = (np.arange(RES) + 0.5) / RES * 2 - 1
    gx, gy = np.meshgrid(u * s, -u * s)
    d = np.stack([gx, gy, np.ones_like(gx)], axis=-1).reshape(-1, 3) @ look_at(eye).T
    d /= np.linalg.norm(d, axis=1, keepdims=True)
    d = torch.tensor(d, dtype=torch.float32, device=device)
    o = torch.tensor(eye, dtype=torch.float32, device=device).expand_as(d)
    return o, d


# ---------------------------------------------------------------- scene
def random_scene(n, spread):
    return {
        "center": torch.randn(n, 3, device=device) * spread,
        "radius": 0.16 + 0.06 * torch.rand(n, device=device),
        "color": torch.rand(n, 3, device=device),
    }


def blob_distances(p, scene):
    return (p[:, None, :] - scene["center"][None]).norm(dim=-1) - scene["radius"].abs()


def sdf(p, scene):
    return -torch.logsumexp(-SHARP * blob_distances(p, scene), dim=1) / SHARP


def normals(p, scene, eps=2e-3):
    g = []
    for axis in range(3):
        e = torch.zeros(3, device=device)
        e[axis] = eps
        g.append(sdf(p + e, scene) - sdf(p - e, scene))
    n = torch.stack(g, dim=1)
    return n / (n.norm(dim=1, keepdim=True) + 1e-9)


# ---------------------------------------------------------------- rendering
@torch.no_grad()
def trace(o, d, scene):
    t = torch.full((d.shape[0],), NEAR, device=device)
    t_best, best = t.clone(), torch.full_like(t, 1e9)
    alive = torch.ones_like(t, dtype=torch.bool)
    for _ in range(MARCH):
        dist = sdf(o + t[:, None] * d, scene)
        closer = dist < best
        best = torch.where(closer, dist, best)
        t_best = torch.where(closer, t, t_best)
        alive = alive & (dist > 1e-3) & (t < FAR)
        if not alive.any():
            break
        t = torch.where(alive, t + dist, t)
    return t_best, best < 5e-3


def shade(p, n, scene, light):
    w = torch.softmax(-SHARP * blob_distances(p, scene), dim=1)
    albedo = w @ scene["color"]
    lambert = (n * light).sum(1, keepdim=True).clamp(min=0)
    return albedo * (0.25 + 0.75 * lambert)


def render(o, d, scene, light, background):
    t, hit = trace(o, d, scene)
    # soft silhouette from the closest point of every ray
    alpha = torch.sigmoid(-60.0 * (sdf(o + t[:, None] * d, scene) - 0.01))[:, None]

    oh, dh, th = o[hit], d[hit], t[hit]
    p = oh + th[:, None] * dh
    n = normals(p, scene)
    # move the hit point with the surface: dt = -f / (n . d)
    slope = (n.detach() * dh).sum(1).clamp(max=-0.1)
    th = th - (sdf(p, scene) - sdf(p, scene).detach()) / slope
    color = shade(oh + th[:, None] * dh, n, scene, light)

    image = background.expand(o.shape[0], 3).clone()
    image[hit] = color.to(image.dtype)
    return alpha * image + (1 - alpha) * background


# ---------------------------------------------------------------- photos
eyes = []
for i in range(N_VIEWS):
    a = 2 * math.pi * i / N_VIEWS
    eyes.append(np.array([3.4 * math.cos(a), 0.8 + 0.6 * math.sin(3 * a), 3.4 * math.sin(a)]))
light = torch.nn.functional.normalize(torch.tensor([0.5, 0.8, 0.3], device=device), dim=0)
background = torch.tensor([0.05, 0.05, 0.08], device=device)

truth = random_scene(N_BLOBS, 0.55)
photos = []
with torch.no_grad():
    for eye in eyes:
        photos.append(render(*camera_rays(eye), truth, light, background).cpu().numpy())

# ---------------------------------------------------------------- fit
scene = random_scene(N_BLOBS, 0.5)
for v in scene.values():
    v.requires_grad_(True)
opt = torch.optim.Adam([
    {"params": [scene["center"]], "lr": 4e-3},
    {"params": [scene["radius"]], "lr": 1e-3},
    {"params": [scene["color"]], "lr": 1e-2},
])
psnrs = []
tic = time.time()
for it in range(ITERS):
    views = rng.choice(N_VIEWS, PER_STEP, replace=False)
    opt.zero_grad()
    loss = 0
    for v in views:
        o, d = camera_rays(eyes[v])
        photo = torch.from_numpy(photos[v]).to(device)
        image = render(o, d, scene, light, background)
        loss = loss + (image - photo).abs().mean()
        mse = ((image.detach() - photo) ** 2).mean().item()
        psnrs.append(-10 * math.log10(mse + 1e-12))
    loss.backward()
    opt.step()
    if it % 50 == 0:
        print(f"{it:4d} loss {loss.item() / PER_STEP:.4f} psnr {np.mean(psnrs[-30:]):.2f} dB {time.time() - tic:.1f} s")

print("final psnr", np.mean(psnrs[-60:]))
