"""Muon for the matrices of the layers, Adam for everything else, and a running average of the weights.

All state is tensors and the learning rate is one too, so that a whole step can be recorded as a CUDA graph and replayed. Weights of one shape lie in one
tensor, and all that Adam takes lie in another, so that a step is hundreds of kernels and not thousands.
"""

import torch


def orthogonal(g, steps=5):
    """The nearest (semi-)orthogonal matrices to a stack of gradients [n, a, b], roughly: five steps of a quintic Newton-Schulz iteration."""
    x = g.bfloat16() if g.is_cuda else g.clone()
    turned = x.shape[1] > x.shape[2]
    if turned:
        x = x.transpose(1, 2)
    x = x / (x.float().pow(2).sum((1, 2), keepdim=True).sqrt() + 1e-7).to(x.dtype)
    for _ in range(steps):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.transpose(1, 2) if turned else x).float()


class Optimiser:
    def __init__(self, weights, names, rate, decay=0.05, momentum=0.95, betas=(0.9, 0.98)):
        """`names`: the weights that train; their entries in `weights` are replaced by views that ask for gradients. Muon takes what is a matrix inside a
        layer: not tables, not convolutions."""
        self.rate, self.decay, self.momentum, self.betas, self.names = rate, decay, momentum, betas, names
        groups, self.plain = {}, []
        for n in names:
            if weights[n].ndim == 2 and "embed_tokens" not in n:
                groups.setdefault(tuple(weights[n].shape), []).append(n)
            else:
                self.plain.append(n)
        self.groups = list(groups.values())
        device = weights[names[0]].device
        self.stores = self.stored({n: weights[n].detach() for n in names})
        self.averages = [s.clone() for s in self.stores]
        self.speeds = [torch.zeros_like(s) for s in self.stores[:-1]]
        self.first, self.second = torch.zeros_like(self.stores[-1]), torch.zeros_like(self.stores[-1])
        self.lr = torch.zeros((), device=device)  # set before each step, as a share of `rate`
        self.count, self.age = torch.zeros((), device=device), torch.zeros((), device=device)  # steps; of the average
        shapes = {n: weights[n].shape for n in names}
        weights |= {n: v.detach().requires_grad_(True) for n, v in self.views(self.stores, shapes).items()}
        self.average = self.views(self.averages, shapes)

    def stored(self, tensors):
        """One tensor for each group of matrices, and a flat one for the rest."""
        return [torch.stack([tensors[n] for n in group]) for group in self.groups] + [torch.cat([tensors[n].flatten() for n in self.plain])]

    def views(self, stores, shapes):
        """The way back: by name, in the same memory."""
        out = {n: store[i] for group, store in zip(self.groups, stores) for i, n in enumerate(group)}
        at = 0
        for n in self.plain:
            size = shapes[n].numel()
            out[n] = stores[-1][at:at + size].view(shapes[n])
            at += size
        return out

    @torch.no_grad()
    def step(self, gradients, clip=1.0):
        """gradients: by name. Returns their norm before clipping. Where that is not finite, nothing is learned from this step."""
        stacked = self.stored(gradients)
        norm = torch.stack([g.pow(2).sum() for g in stacked]).sum().sqrt()
        good, scale = torch.isfinite(norm), (clip / (norm + 1e-6)).clamp(max=1.0)
        stacked = [torch.where(good, g * scale, torch.zeros_like(g)) for g in stacked]
        self.count += 1
        self.age += 1
        lr = self.lr * self.rate
        for store, speed, g in zip(self.stores, self.speeds, stacked):
            speed.mul_(self.momentum).add_(g)
            update = orthogonal(g + self.momentum * speed) * (0.2 * max(store.shape[1:]) ** 0.5)  # as large as Adam's
            store.mul_(1 - lr * self.decay).sub_(lr * update)
        one, two = self.betas
        g = stacked[-1]
        self.first.mul_(one).add_(g, alpha=1 - one)
        self.second.mul_(two).addcmul_(g, g, value=1 - two)
        step = (self.first / (1 - one**self.count)) / ((self.second / (1 - two**self.count)).sqrt() + 1e-8)
        self.stores[-1].sub_(lr * step)
        keep = (1 - 1 / (self.age + 10)).clamp(max=0.9985)
        for average, store in zip(self.averages, self.stores):
            average.mul_(keep).add_(store * (1 - keep))
        return norm
