"""Neural combinatorial optimization (Bello et al. 2016): a pointer network learns tours with REINFORCE, greedy rollout as baseline."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CITIES, BATCH, HIDDEN, STEPS = 40, 512, 128, 70


class Attention(nn.Module):
    def __init__(self, hidden, clip=None):
        super().__init__()
        self.W_query, self.W_ref = nn.Linear(hidden, hidden), nn.Conv1d(hidden, hidden, 1)
        self.v = nn.Parameter(torch.empty(hidden).uniform_(-hidden ** -0.5, hidden ** -0.5))
        self.clip = clip

    def forward(self, query, ref):
        """query: batch x hidden, ref: batch x cities x hidden"""
        ref = self.W_ref(ref.permute(0, 2, 1))                       # batch x hidden x cities
        query = self.W_query(query).unsqueeze(2).repeat(1, 1, ref.size(2))
        v = self.v.view(1, 1, -1).expand(ref.size(0), 1, -1)
        logits = torch.bmm(v, torch.tanh(query + ref)).squeeze(1)
        if self.clip is not None:
            logits = self.clip * torch.tanh(logits)
        return ref, logits


class PointerNet(nn.Module):
    def __init__(self, hidden=HIDDEN):
        super().__init__()
        self.embedding = nn.Linear(2, hidden)
        self.encoder = nn.LSTM(hidden, hidden, batch_first=True)
        self.decoder = nn.LSTMCell(hidden, hidden)
        self.glimpse, self.pointer = Attention(hidden), Attention(hidden, clip=10.0)
        self.start = nn.Parameter(torch.empty(hidden).uniform_(-0.08, 0.08))

    def apply_mask(self, logits, mask, chosen):
        mask = mask.clone()
        if chosen is not None:
            mask[torch.arange(len(mask), device=mask.device), chosen] = True
        logits = logits.masked_fill(mask, float("-inf"))
        return logits, mask

    def forward(self, cities, greedy=False):
        batch, n = cities.shape[:2]
        embedded = self.embedding(cities)
        context, (h, c) = self.encoder(embedded)
        h, c = h[0], c[0]
        x = self.start.expand(batch, -1)
        mask = torch.zeros(batch, n, dtype=torch.bool, device=cities.device)
        chosen, tour, log_probs = None, [], []
        for _ in range(n):
            h, c = self.decoder(x, (h, c))
            query = h
            ref, logits = self.glimpse(query, context)
            logits, mask = self.apply_mask(logits, mask, chosen)
            query = torch.bmm(ref, F.softmax(logits, dim=1).unsqueeze(2)).squeeze(2)
            _, logits = self.pointer(query, context)
            logits, mask = self.apply_mask(logits, mask, chosen)
            log_p = F.log_softmax(logits, dim=1)
            chosen = log_p.argmax(1) if greedy else log_p.exp().multinomial(1).squeeze(1)
            log_probs.append(log_p.gather(1, chosen[:, None]).squeeze(1))
            tour.append(chosen)
            x = embedded[torch.arange(batch, device=cities.device), chosen]
        return torch.stack(tour, 1), torch.stack(log_probs, 1)


def tour_length(cities, tour):
    n = tour.shape[1]
    rows = torch.arange(len(tour), device=tour.device)
    length = torch.zeros(len(tour), device=tour.device)
    for i in range(n):
        a, b = cities[rows, tour[:, i]], cities[rows, tour[:, (i + 1) % n]]
        length = length + torch.norm(a - b, dim=1)
    return length


torch.manual_seed(1234)
model = PointerNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, range(5000, 50000, 5000), gamma=0.96)
best = float("inf")
for step in range(STEPS):
    cities = torch.rand(BATCH, CITIES, 2).cuda()
    tour, log_probs = model(cities)
    length = tour_length(cities, tour)
    with torch.no_grad():
        greedy_tour, _ = model(cities, greedy=True)
        baseline = tour_length(cities, greedy_tour)
    loss = ((length - baseline) * log_probs.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    optimizer.step()
    scheduler.step()
    if length.mean() < best:
        best = length.mean().item()
    if step % 10 == 0:
        print(f"[{step:5d}] length {length.mean().item():.3f} greedy {baseline.mean().item():.3f} best {best:.3f}")
