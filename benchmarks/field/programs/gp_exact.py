"""Exact Gaussian process regression with gpytorch: hyperparameters by Adam."""
import gpytorch
import torch

torch.manual_seed(0)
train_x = torch.rand(4000, 8).cuda()
train_y = (torch.sin(train_x.sum(-1) * 3) + 0.1 * torch.randn(4000).cuda())


class GP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=8))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = GP(train_x, train_y, likelihood).cuda()
model.train()
likelihood.train()
opt = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
for i in range(30):
    opt.zero_grad()
    output = model(train_x)
    loss = -mll(output, train_y)
    loss.backward()
    print(f"{i} loss {loss.item():.3f} noise {model.likelihood.noise.item():.3f}")
    opt.step()
