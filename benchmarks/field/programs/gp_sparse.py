"""Sparse variational Gaussian process in minibatches, gpytorch."""
import gpytorch
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, noise = torch.rand(40000, 10), torch.randn(40000)
y = torch.sin(x.sum(-1) * 2) + 0.1 * noise
loader = DataLoader(TensorDataset(x, y), batch_size=1024, shuffle=True)


class SVGP(gpytorch.models.ApproximateGP):
    def __init__(self, inducing):
        q = gpytorch.variational.CholeskyVariationalDistribution(inducing.size(0))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=10))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


model, likelihood = SVGP(x[:500].clone()).cuda(), gpytorch.likelihoods.GaussianLikelihood().cuda()
model.train(); likelihood.train()
opt = torch.optim.Adam([{"params": model.parameters()}, {"params": likelihood.parameters()}], lr=0.01)
mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
for xb, yb in loader:
    xb, yb = xb.cuda(), yb.cuda()
    opt.zero_grad()
    loss = -mll(model(xb), yb)
    loss.backward()
    opt.step()
print(loss.item())
