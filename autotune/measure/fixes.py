"""What to do about each `BreakKind`: words, and a pattern of two lines before and after. Data only.

Each is shown to work by a test (`tests/doctor`), in the framework that it is for.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.measure.diagnosis import BreakKind


@dataclass(frozen=True)
class Fix:
    """What to do, and how the code looks before and after it."""

    words: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def fix_of(framework: str, break_kind: BreakKind) -> Fix | None:
    """The fix in a framework; None where none is known."""
    return _FIXES.get(framework, {}).get(break_kind)


_TORCH: dict[BreakKind, Fix] = {
    BreakKind.BRANCH: Fix(
        "compute both sides and choose with torch.where; or torch.cond, where a side is expensive",
        ("if y.sum() > 0:", "    y = y + 1"),
        ("y = torch.where(y.sum() > 0, y + 1, y)",),
    ),
    BreakKind.SCALAR: Fix(
        "keep it a tensor: a 0-d tensor computes like a number",
        ("scale = x.mean().item()", "return x * scale"),
        ("scale = x.mean()", "return x * scale"),
    ),
    BreakKind.PRINT: Fix(
        "take it out of the model, or return the value and print it outside",
        ("y = self.layer(x)", 'print("mean", y.mean())'),
        ("y = self.layer(x)", "return y, y.mean()  # the caller prints"),
    ),
    BreakKind.NUMPY: Fix(
        "use torch's operator of that name: NumPy's cannot be captured, or not with these arguments",
        ("mean = np.nanmean(y.numpy(), 0)", "return y + torch.from_numpy(mean)"),
        ("mean = torch.nanmean(y, 0)", "return y + mean"),
    ),
    BreakKind.CLOCK_OR_RANDOM: Fix(
        "measure time outside of the model; draw random numbers with torch, or pass them in as a tensor",
        ("noise = random.random()", "return y * noise"),
        ("noise = torch.rand(())", "return y * noise"),
    ),
    BreakKind.FOREIGN_CALL: Fix(
        "do it outside of the model and pass the result in; or wrap it with torch.library.custom_op, which puts the "
        "call into the graph as it is",
        ("y = x * 2", 'os.stat(".")'),
        ("y = x * 2", "# os.stat moved to the caller"),
    ),
    BreakKind.CONTAINER: Fix(
        "build a fresh tensor or a plain list of tensors instead; objects are copied outside of the model",
        ("kept = copy.deepcopy(y)", "return kept + 1"),
        ("kept = y.clone()", "return kept + 1"),
    ),
    BreakKind.DATA_SHAPE: Fix(
        "keep the shape and mask: multiply by, or choose with, a condition of the full shape",
        ("chosen = y[y > 0]", "return chosen.sum()"),
        ("chosen = torch.where(y > 0, y, 0.0)", "return chosen.sum()"),
    ),
    BreakKind.OPERATOR: Fix(
        "use an operator that the compiler takes, such as a recurrent layer's cell in a loop; or wrap the call with "
        "torch.library.custom_op",
        ("out, _ = self.gru(x)  # nn.GRU", "return out"),
        ("for step in x: state = self.cell(step, state); out.append(state)  # nn.GRUCell", "return torch.stack(out)"),
    ),
    BreakKind.CUSTOM_OP: Fix(
        "tell the compiler the shape and type of its result: register_fake of torch.library",
        ('@torch.library.custom_op("my::double", mutates_args=())', "def double(x: Tensor) -> Tensor: ..."),
        ("@double.register_fake", "def _(x): return torch.empty_like(x)"),
    ),
    BreakKind.CONTEXT: Fix(
        "put the `with` around the call of the model instead of into it",
        ("with saved_tensors_hooks(pack, unpack):", "    y = self.layer(x)"),
        ("y = self.layer(x)", "# the caller: with saved_tensors_hooks(pack, unpack): model(x)"),
    ),
    BreakKind.GENERATOR: Fix(
        "keep no generator: what it gives is read outside and passed in, or computed from a tensor",
        ("scale = next(self.scales)", "return y * scale"),
        ("self.scale.mul_(0.5)  # a buffer", "return y * self.scale"),
    ),
    BreakKind.EXCEPTION: Fix(
        "check beforehand instead of catching: a condition on shapes or types costs nothing in a graph",
        ("try: y = table[key]", "except KeyError: y = x"),
        ("if key in table: y = table[key]", "else: y = x"),
    ),
    BreakKind.DISABLED: Fix(
        "take torch.compiler.disable off, or call the function outside of the model",
        ("@torch.compiler.disable", "def scaled(x): return x * 3"),
        ("def scaled(x): return x * 3",),
    ),
    BreakKind.CHANGING_SHAPE: Fix(
        "say which dimension changes, or pad it to a few sizes",
        ("model(x)", ""),
        ("torch._dynamo.mark_dynamic(x, 0)", "model(x)"),
    ),
    BreakKind.CHANGING_VALUE: Fix(
        "make it a tensor: a Python number is a constant of the compiled code",
        ("self.calls = 0", "self.calls += 1"),
        ('self.register_buffer("calls", torch.zeros(()))', "self.calls.add_(1)"),
    ),
    BreakKind.CHANGING_CONTAINER: Fix(
        "let it have one length: keep what grows outside of the model, or in a tensor of fixed size",
        ("self.seen.append(y.mean())", "return y"),
        ("return y, y.mean()", "# the caller appends"),
    ),
    BreakKind.CHANGING_TYPE: Fix(
        "give every call the same element type, device and gradient mode",
        ("model(x)", "model(x.double())"),
        ("model(x)", "model(y.to(x.dtype))"),
    ),
    BreakKind.AFTER_BREAK: Fix(
        "fix the graph break above it: the value comes out of that break",
        ("n = y.sum().item()  # the break", "return y * n"),
        ("n = y.sum()", "return y * n"),
    ),
}

_MINDSPORE: dict[BreakKind, Fix] = {
    BreakKind.SCALAR: Fix(
        "keep it a tensor: a 0-d tensor computes like a number",
        ("scale = float(x.mean())", "return x * scale"),
        ("scale = x.mean()", "return x * scale"),
    ),
    BreakKind.PRINT: Fix(
        "take it out of construct, or return the value and print it outside",
        ('logging.getLogger("net").warning("called")', "return y"),
        ("return y", "# the caller logs"),
    ),
    BreakKind.NUMPY: Fix(
        "use MindSpore's operator of that name: asnumpy leaves the graph at every call",
        ("order = Tensor(np.sort(y.asnumpy(), 0))", "return y + order"),
        ("order = ops.sort(y, 0)[0]", "return y + order"),
    ),
    BreakKind.CLOCK_OR_RANDOM: Fix(
        "pass the value in as a tensor; a number of Python's is drawn once, when the graph is compiled, or breaks it",
        ("noise = random.random()", "return y * noise"),
        ("def construct(self, x, noise):", "    return x * 2 * noise"),
    ),
    BreakKind.FOREIGN_CALL: Fix(
        "do it outside of construct and pass the result in",
        ("kept = copy.deepcopy(y)", "return y + kept"),
        ("return y + y",),
    ),
    BreakKind.CONTAINER: Fix(
        "use a list, a tuple or a dict: other containers are not taken",
        ("names = {1, 2}", "return y * len(names)"),
        ("names = (1, 2)", "return y * len(names)"),
    ),
    BreakKind.CONTEXT: Fix(
        "put the `with` around the call of the model instead of into construct",
        ("with profiler:", "    y = self.layer(x)"),
        ("y = self.layer(x)", "# the caller: with profiler: net(x)"),
    ),
    BreakKind.GENERATOR: Fix(
        "use a plain loop in place of the generator",
        ("for each in multiples(x):", "    y = y + each"),
        ("for number in range(3):", "    y = y + x * number"),
    ),
    BreakKind.EXCEPTION: Fix(
        "check beforehand instead of catching",
        ("try: y = table[key]", "except KeyError: y = x"),
        ("if key in table: y = table[key]", "else: y = x"),
    ),
    BreakKind.CHANGING_INPUT: Fix(
        "for a changing shape say which dimensions change; give changing Python numbers as tensors",
        ("net(x)", ""),
        ("net.set_inputs(Tensor(shape=[None, 64], dtype=ms.float32))", "net(x)"),
    ),
    BreakKind.AFTER_BREAK: Fix(
        "fix the graph break above it: what is computed with its value is left to the interpreter as well",
        ("order = Tensor(np.sort(y.asnumpy(), 0))", "return ops.matmul(y, order.T)"),
        ("order = ops.sort(y, 0)[0]", "return ops.matmul(y, order.T)"),
    ),
}

_FIXES: dict[str, dict[BreakKind, Fix]] = {"torch": _TORCH, "mindspore": _MINDSPORE}
