"""Own code in pairs that compute otherwise, code that stays the same, and code that is refused, for
`laws/test_code_digest.py`: as `f` or `Net` of a module's source.
"""

from __future__ import annotations

MODULE = "import torch\nfrom torch import nn\n"
LAYER = f"{MODULE}class L(nn.Module):\n    def __init__(self, a=0):\n        super().__init__(); self.a = a\n"
OTHER = {  # what differs -> source, what is replaced in it, by what
    "dict order": ("S = {'a': 1, 'b': 2}\ndef f(x): return [*S.values()]", "'a': 1, 'b': 2", "'b': 2, 'a': 1"),
    "enum value": ("import enum\nclass M(enum.Enum):\n    A = 1\ndef f(x, m=M.A): return m.value", "A = 1", "A = 2"),
    "enum method": (
        "import enum\nclass M(enum.Enum):\n    A = 1\n    def g(self): return 2\nK = M.A\ndef f(x): return K.g()",
        "return 2",
        "return 3",
    ),
    "partialmethod": (
        "import functools\nclass f:\n    def g(self, by): return by\n    h = functools.partialmethod(g, by=2)",
        "by=2",
        "by=3",
    ),
    "singledispatchmethod": (
        "import functools\nclass f:\n    @functools.singledispatchmethod\n    def g(self, x): return x\n"
        "    @g.register\n    def _(self, x: int): return x * 2\n    del _",
        "x * 2",
        "x * 3",
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef g(x): return x\n@g.register\ndef _(x: int): return x * 2\n"
        "def f(x): return g(x)",
        "x * 2",
        "x * 3",
    ),
    "function attribute": ("def f(x): return f.by\nf.by = 2", "by = 2", "by = 3"),
    "subclass of dict": ("class C(dict):\n    def g(self): return 2\nK = C()\ndef f(x): return K.g()", "n 2", "n 3"),
    "content of a subclass": ("class C(dict): pass\nK = C(a=2)\ndef f(x): return K", "a=2", "a=3"),
    "subclass of float": ("class C(float):\n    def g(self): return 2\nK = C(1)\ndef f(x): return K.g()", "n 2", "n 3"),
    "named tuple": (
        "from typing import NamedTuple\nclass C(NamedTuple):\n    a: int\n    def g(self): return 2\nK = C(1)\n"
        "def f(x): return K.g()",
        "return 2",
        "return 3",
    ),
    "subclass of a tensor": (
        f"{MODULE}class C(torch.Tensor):\n    def g(self): return 2\nK = torch.ones(1).as_subclass(C)\n"
        "def f(x): return K.g()",
        "return 2",
        "return 3",
    ),
    "subclass of an array": (
        "import numpy\nclass C(numpy.ndarray):\n    def g(self): return 2\nK = numpy.ones(1).view(C)\n"
        "def f(x): return K.g()",
        "return 2",
        "return 3",
    ),
    "names of a structured array": (
        "import numpy\nK = numpy.array([(1, 2)], dtype=[('a', 'i4'), ('b', 'i4')])\ndef f(x): return K['a']",
        "('a', 'i4'), ('b', 'i4')",
        "('b', 'i4'), ('a', 'i4')",
    ),
    "child in a Sequential": (
        f"{LAYER}    def forward(self, x): return x * 2\nK = nn.Sequential(L())\ndef f(): return K",
        "x * 2",
        "x * 3",
    ),
    "module's list": (f"{LAYER}K = L([2])\ndef f(): return K", "[2]", "[3]"),
    "module's function": (f"{LAYER}K = L(torch.relu)\ndef f(): return K", "relu", "tanh"),
    "module's own forward": (
        f"{MODULE}K = nn.Identity()\nK.forward = lambda x: x * 2\ndef f(): return K",
        "* 2",
        "* 3",
    ),
    "module's hook": (
        f"{MODULE}K = nn.Identity()\nK.register_forward_hook(lambda m, i, o: o * 2)\ndef f(): return K",
        "* 2",
        "* 3",
    ),
    "non-persistent buffer": (
        f"{MODULE}K = nn.Identity()\nK.register_buffer('v', torch.tensor(2.0), persistent=False)\ndef f(): return K",
        "2.0",
        "3.0",
    ),
    "requires_grad": (
        f"{MODULE}K = nn.Embedding.from_pretrained(torch.ones(2, 2), freeze=True)\ndef f(): return K",
        "True",
        "False",
    ),
    "bound method of a dict": ("K = {1: 2}.get\ndef f(x): return K(x)", "1: 2", "1: 3"),
    "bound method of a tensor": (f"{MODULE}K = torch.tensor(2.0).mul\ndef f(x): return K(x)", "2.0", "3.0"),
    "dunder that is a library's": (f"{MODULE}class f:\n    __call__ = torch.relu", "relu", "tanh"),
    "dunder that is cached": (
        "import functools\nclass f:\n    @functools.lru_cache\n    def __call__(self, x): return x * 2",
        "x * 2",
        "x * 3",
    ),
    "slots beside a dict": (
        "class B:\n    __slots__ = ('by',)\nclass C(B):\n    pass\nK = C()\nK.by = 2\ndef f(x): return K.by",
        "by = 2",
        "by = 3",
    ),
    "attribute that is no field": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    a: int\nK = C(1)\nK.b = 2\ndef f(x): return K.b",
        "b = 2",
        "b = 3",
    ),
    "field's metadata": (
        "import dataclasses\n@dataclasses.dataclass\nclass f:\n    a: int = dataclasses.field(metadata={'by': 2})",
        "'by': 2",
        "'by': 3",
    ),
    "metaclass": ("class M(type):\n    def g(cls): return 2\nclass f(metaclass=M): pass", "return 2", "return 3"),
    "make_dataclass": (
        "import dataclasses\nf = dataclasses.make_dataclass('C', ['a'], namespace={'g': lambda self: 2})",
        "self: 2",
        "self: 3",
    ),
    "new_class": ("import types\nf = types.new_class('C', (), {}, lambda d: d.update(g=lambda s: 2))", "s: 2", "s: 3"),
    "class without a module's name": (
        "s = {}\nexec('class C:\\n    def g(self): return 2', s)\nC = s['C']\ndef f(x): return C().g()",
        "return 2",
        "return 3",
    ),
    "long pattern": ("import re\nK = re.compile('a' * 300 + 'b')\ndef f(x): return K.match(x)", "'b'", "'c'"),
    "object of a library": (
        "from sklearn.preprocessing import FunctionTransformer\n"
        "K = FunctionTransformer(abs, kw_args={'a': 2})\ndef f(x): return K",
        "'a': 2",
        "'a': 3",
    ),
    "wrapped by a library": (f"{MODULE}@torch.no_grad()\ndef f(x): return x * 2", "x * 2", "x * 3"),
    "annotation in text": (
        "from __future__ import annotations\nfrom typing import Annotated\nLIMIT = 2\nclass f:\n"
        "    a: Annotated[int, LIMIT]\n    def g(self): ...",
        "LIMIT = 2",
        "LIMIT = 3",
    ),
    "default factory": ("import collections\nK = collections.defaultdict(lambda: 2)\ndef f(x): return K", ": 2", ": 3"),
    "partial of a library": (
        "import functools, random\nU = functools.partial(random.uniform, 0, 1)\ndef f(x): return U()",
        "0, 1",
        "0, 2",
    ),
}

CALLED = "\nCALL = lambda: f({})\n"
SAME = {  # source; what CALL does must change nothing
    "random.uniform": f"from random import uniform\ndef f(x): return x * uniform(0, 1){CALLED.format(1)}",
    "random.choice": f"from random import choice\ndef f(x): return choice([x]){CALLED.format(1)}",
    "default random.choice": "import random\ndef f(x, pick=random.choice): return pick([x])",
    "partial of random.uniform": "import functools, random\nf = functools.partial(random.uniform, 0)"
    f"{CALLED.format(1)}",
    "numpy.random.normal": f"from numpy.random import normal\ndef f(x): return normal(){CALLED.format(1)}",
    "os.environ": "from os import environ\ndef f(x): return environ.get('X')\n"
    "def CALL(): environ['CODE_DIGEST_LAW'] = '1'",
    "copy.deepcopy": f"from copy import deepcopy\ndef f(x): return deepcopy(x){CALLED.format([1])}",
    "einops": f"import torch\nfrom einops import rearrange\ndef f(x): return rearrange(torch.ones(2, 3), 'a b -> b a')"
    f"{CALLED.format(1)}",
    "scipy.stats.norm": f"from scipy.stats import norm\ndef f(x): return norm.pdf(x){CALLED.format(1)}",
    "sklearn's scale": "from sklearn.preprocessing import scale\ndef f(x): return scale([[1.0], [x]])"
    f"{CALLED.format(3.0)}",
    "torch.func.vmap": "import torch\nfrom torch.func import vmap\ndef f(x): return vmap(torch.sin)(torch.ones(x))"
    f"{CALLED.format(2)}",
    "torch.compile": "import torch\n@torch.compile\ndef f(x): return x",
    "torch's init": "import torch\nfrom torch.nn.init import trunc_normal_\n"
    "def f(x): return trunc_normal_(torch.ones(2))"
    f"{CALLED.format(1)}",
    "warnings.warn": "from warnings import warn\ndef f(x): return warn",
    "singledispatch": "import functools\n@functools.singledispatch\ndef g(x): return x\n@g.register\n"
    f"def _(x: int): return 2 * x\ndef f(x): return g(x){CALLED.format(1)}",
    "lru_cache": f"import functools\n@functools.lru_cache\ndef f(x): return x{CALLED.format(1)}",
    "cached_property": "import functools\nclass C:\n    @functools.cached_property\n    def a(self): return 1\n"
    "K = C()\n"
    f"def f(x): return K.a{CALLED.format(1)}",
    "set of lambdas": "S = set()\nfor k in range(40):\n    S.add(eval(f'lambda x: x + {k}'))\ndef f(x): return S",
    "set of objects": "class K:\n    def __init__(self, v): self.v = v\n"
    "S = {K(k) for k in range(9)}\ndef f(x): return S",
    "set of texts": "S = {'a', 'b', 'c', 'd'}\ndef f(x): return S",
    "module with hooks": "import random\nfrom torch import nn\nfor _ in range(random.SystemRandom().randrange(9)):\n"
    "    nn.Identity().register_forward_hook(print)\nK = nn.ReLU()\nK.register_forward_hook(print)\ndef f(x): return K",
    "Protocol": "from typing import Protocol\nclass P(Protocol):\n    def g(self): ...\nclass f(P):\n"
    "    def g(self): return 1\nCALL = f",
    "autograd function": "import random, torch\nfor _ in range(random.SystemRandom().randrange(9)):\n"
    "    type('B', (torch.autograd.Function,), {})\nclass f(torch.autograd.Function): pass",
    "chain of functions": "".join(f"def g{k}(x): return g{k + 1}(x)\n" for k in range(400))
    + "def g400(x): return x\ndef f(x): return g0(x)",
}

REFUSED = {  # source -> a part of why
    "memo": ("M = {}\ndef f(x):\n    M[x] = x", "changes M"),
    "memo by another name": ("M = {}\ndef f(x):\n    m = M\n    m[x] = x", "changes M"),
    "memo in a default": ("def f(x, m={}):\n    m.setdefault(x, x)", "changes m"),
    "memo in a closure": ("def g():\n    m = []\n    return lambda x: m.append(x)\nf = g()", "changes m"),
    "counter": ("N = 0\ndef f(x):\n    global N\n    N += 1", "changes N"),
    "counter in a closure": (
        "def g():\n    n = 0\n    def h(x):\n        nonlocal n\n        n += 1\n    return h\nf = g()",
        "changes n",
    ),
    "counter on the function": ("def f(x):\n    f.n = 1", "changes f"),
    "globals": ("B = 2\ndef f(x): return globals()['B']", r"calls globals\(\)"),
    "eval": ("B = 2\ndef f(x): return eval('B')", r"calls eval\(\)"),
    "sys.modules": ("import sys\ndef f(x): return sys.modules[x]", "uses sys.modules"),
    "import_module": ("from importlib import import_module\ndef f(x): return import_module(x)", "uses import_module"),
    "iterator": ("import itertools\nC = itertools.count()\ndef f(x): return next(C)", "another after each step"),
    "generator": ("import numpy\nR = numpy.random.default_rng(0)\ndef f(x): return R", "another after each draw"),
    "scripted": (
        "import torch\nK = torch.jit.trace(torch.nn.ReLU(), torch.ones(1))\ndef f(x): return K",
        "ScriptModule|Traced",
    ),
    "ufunc of a function": ("import numpy\nK = numpy.frompyfunc(lambda x: x, 1, 1)\ndef f(x): return K", "numpy.ufunc"),
}

USING = "from torch import nn\n{}\nclass Net(nn.Module):\n    def forward(self, x):\n        {}\n"
HELP = {"helper.py": "def g(x): return x * 2\n"}
FILES = {  # an import -> files, and the one in which a 2 becomes a 3
    "import": ({"net.py": USING.format("import helper", "return helper.g(x)"), **HELP}, "helper.py"),
    "from": ({"net.py": USING.format("from helper import g", "return g(x)"), **HELP}, "helper.py"),
    "import inside": ({"net.py": USING.format("", "import helper; return helper.g(x)"), **HELP}, "helper.py"),
    "import as inside": ({"net.py": USING.format("", "import helper as h; return h.g(x)"), **HELP}, "helper.py"),
    "from inside": ({"net.py": USING.format("", "from helper import g; return g(x)"), **HELP}, "helper.py"),
    "as a value": ({"net.py": USING.format("import helper", "return getattr(helper, 'g')(x)"), **HELP}, "helper.py"),
    "import of an import": (
        {
            "net.py": USING.format("import helper", "return helper.g(x)"),
            "helper.py": "import helper2\ndef g(x): return helper2.h(x)\n",
            "helper2.py": "def h(x): return x * 2\n",
        },
        "helper2.py",
    ),
    "import of a package's module": (
        {
            "net.py": USING.format("import lib.blocks", "return lib.blocks.g(x)"),
            "lib/__init__.py": "",
            "lib/blocks.py": HELP["helper.py"],
        },
        "lib/blocks.py",
    ),
    "import of a package": (
        {
            "net.py": USING.format("import lib", "return lib.g(x)"),
            "lib/__init__.py": "from lib.blocks import g\n",
            "lib/blocks.py": HELP["helper.py"],
        },
        "lib/blocks.py",
    ),
    "a name that a distribution has too": (
        {"net.py": USING.format("import examples", "return examples.g(x)"), "examples.py": HELP["helper.py"]},
        "examples.py",
    ),
    "base in a file of such a name": (
        {"net.py": "from benchmarks import B\nclass Net(B): pass\n", "benchmarks.py": "class B:\n    a = 2\n"},
        "benchmarks.py",
    ),
}
