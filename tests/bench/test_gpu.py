"""bench/gpu: output and saved results when a peer, a network or PyTorch fails, with the emulation as GPU; and its step in PyTorch."""
import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import skips

GPU = os.path.join(os.environ["TERN_SOURCE"], "bench", "gpu")
EMULATED = os.path.join(os.environ["TERN_BUILD"], "emulated")
os.environ["TERN_PLUGIN_PATH"] = EMULATED


def load(name, folder=GPU):
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", os.path.join(folder, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu, step, ops = load("run"), load("step"), load("ops", os.path.join(os.environ["TERN_SOURCE"], "tests", "torch"))

SMALL = {"mlp": ("MLP", ("mlp", 8, None, "f32", 3, 3), 3.0)}


class Scripted(gpu.Peer):
    """A peer whose command prints this text, or fails with it."""

    def __init__(self, name, text, code=0):
        super().__init__(name)
        self.text, self.code, self.tries = text, code, 0

    def command(self, *job):
        self.tries += 1
        return ["sh", "-c", f"echo '{self.text}'; exit {self.code}"]


def said(ms, first=2.5, last=1.0):
    return json.dumps({"median_ms": ms, "tensor_mb": 7, "dtype": "bf16", "loss_first": first, "loss_last": last})


def bench_of(*peers):
    """Measures one network. Returns the output and the saved results."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(gpu, STEPS=SMALL), contextlib.redirect_stdout(io.StringIO()) as out:
        path = os.path.join(folder, "found.json")
        bench = gpu.Bench(path, peers[0], list(peers))
        bench.net("mlp", 2, False)
        with open(path) as file:
            return bench, out.getvalue(), json.load(file)


class Kept(unittest.TestCase):
    def test_other_work(self):
        for first, last, what in ((7.2, 1.0, "loss_first"), ("NaN", 1.0, "loss_first is not a number"), (2.5, 2.5, "loss_last")):
            bench, out, found = bench_of(Scripted("tern", said(4)), Scripted("PyTorch", said(8, first, last).replace('"NaN"', "NaN")))
            self.assertFalse(bench.is_well)
            self.assertEqual(out.count(f"NOT THE SAME WORK: {what}"), 2, out)
            self.assertEqual(found["nets"]["mlp"]["rows"][0]["samples"], {"tern": [4, 4], "PyTorch": [8, 8]})

    def test_peers_that_fail(self):
        """Failed jobs are not tried again, and the other peers are measured."""
        tern, torch, other = Scripted("tern", "no memory", 1), Scripted("PyTorch", said(8)), Scripted("compiled", "what is this")
        bench, out, found = bench_of(tern, torch, other)
        self.assertFalse(bench.is_well)
        self.assertEqual([peer.tries for peer in (tern, torch, other)], [1, 2, 1])
        self.assertIn("exit code 1\nno memory", out)
        self.assertEqual(found["nets"]["mlp"]["rows"][0]["samples"], {"tern": [], "PyTorch": [8, 8], "compiled": []})
        self.assertIn("PyTorch  8 (8..8)", out)

    def test_a_peer_without_an_end(self):
        with mock.patch.object(gpu.Peer, "limit", 0.1):
            sleeper = Scripted("PyTorch", "")
            sleeper.command = lambda *job: ["sleep", "60"]
            _, out, found = bench_of(Scripted("tern", said(4)), sleeper)
        self.assertIn("FAILED: PyTorch: ", out)
        self.assertEqual(found["nets"]["mlp"]["rows"][0]["samples"], {"tern": [4, 4], "PyTorch": []})

    def test_each_round_is_written(self):
        rounds = []
        with mock.patch.object(gpu.Bench, "keep", lambda self: rounds.append(len(self.found["nets"]["mlp"].get("others_percent", [])))):
            with mock.patch.multiple(gpu, STEPS=SMALL), contextlib.redirect_stdout(io.StringIO()):
                tern = Scripted("tern", said(4))
                gpu.Bench(None, tern, [tern]).net("mlp", 3, False)
        self.assertEqual(rounds, [1, 2, 3, 3])

    def test_where_and_when(self):
        _, _, found = bench_of(Scripted("tern", said(4)))
        self.assertRegex(found["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d$")
        self.assertIn("tern ", found["info"])
        self.assertEqual(len(found["clocks"]), 2)


class WithoutTorch(unittest.TestCase):
    def test_is_said(self):
        peers, note = gpu.find_torches("/bin/false", ["graph"])
        self.assertEqual(peers, [])
        self.assertIn("no PyTorch: /bin/false cannot import torch, so tern is measured alone", note)

    def test_without_triton(self):
        peers, note = gpu.find_torches(sys.executable, gpu.WAYS)
        self.assertEqual([peer.way for peer in peers], ["graph", "eager"])
        self.assertIn("has no triton", note)

    @unittest.skipUnless(skips.has_part("emulation"), "this build has no emulation of CUDA")
    def test_tern_is_measured_alone(self):
        with tempfile.NamedTemporaryFile("r") as file, mock.patch.multiple(gpu, STEPS=SMALL), \
                mock.patch.object(sys, "argv", ["run.sh", "--only", "mlp", "--json", file.name, "1"]), \
                mock.patch.dict(os.environ, TORCH_PYTHON="/bin/false"), contextlib.redirect_stdout(io.StringIO()) as out:
            with self.assertRaises(SystemExit) as end:
                gpu.main()
            found = json.load(file)
        self.assertFalse(end.exception.code, out.getvalue())
        self.assertIn("no PyTorch: ", out.getvalue())
        self.assertEqual([len(row["samples"]["tern"]) for row in found["nets"]["mlp"]["rows"]], [1, 1])

    @unittest.skipUnless(skips.has_part("emulation"), "this build has no emulation of CUDA")
    def test_kernels(self):
        """Goals of the optimizers and of profiled kernels; kernels without a large call are reported."""
        with mock.patch.multiple(gpu, PARAMETERS=50000, OUT_OF_CACHE=500, LARGE=[("mlp", 8, None, "f32", 1, 1)]), contextlib.redirect_stdout(io.StringIO()) as out:
            bench = gpu.Bench(None, gpu.Tern(), [])
            bench.kernels()
            gpu.say_goals(bench.found)
        self.assertTrue(bench.is_well, out.getvalue())
        for text in (r"(?m)^adam of 50000 parameters: .* % of a copy's  goal 85: (not )?met$", r"(?m)^adam: \d+ to \d+ % of a copy, goal 85: (not )?met$",
                     r"(?m)^cross_entropy .* goal 85: (not )?met$", r"(?m)^dice_loss: no call large enough"):
            self.assertRegex(out.getvalue(), text)


class Trace(unittest.TestCase):
    def test_what_waits(self):
        for name in ("cuStreamSynchronize", "cuCtxSynchronize_v2", "cuEventSynchronize", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpy"):
            self.assertTrue(gpu.WAITS.match(name), name)
        for name in ("cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyAsync", "cuMemFree_v2", "cuMemUnmap", "cuMemHostAlloc"):
            self.assertTrue(gpu.MAY_WAIT.match(name) and not gpu.WAITS.match(name), name)
        for name in ("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2", "cuMemFreeAsync", "cuMemAllocAsync", "cuStreamWaitEvent", "cuLaunchKernelEx", "cuMemMap"):
            self.assertFalse(gpu.WAITS.match(name) or gpu.MAY_WAIT.match(name) or gpu.LOOKS.match(name), name)
        self.assertTrue(gpu.LOOKS.match("cuEventQuery") and gpu.LOOKS.match("cuStreamQuery"))

    def test_a_step(self):
        few = {"cuGraphLaunch": 12, "cuInit": 1, "cuEventRecord": 30, "cuStreamSynchronize": 4}
        many = {"cuGraphLaunch": 32, "cuInit": 1, "cuEventRecord": 50, "cuStreamSynchronize": 4, "cuMemcpyDtoH_v2": 10}
        found = gpu.step_calls(few, many)
        self.assertEqual(found, {"cuGraphLaunch": 1, "cuMemcpyDtoH_v2": 0.5})
        self.assertEqual(gpu.told(found, gpu.WAITS), "0.5 (cuMemcpyDtoH_v2)")
        self.assertEqual(gpu.told(found, gpu.LOOKS), "0")

    def test_no_graphs(self):
        tern = types.SimpleNamespace(environment={"TERN_GRAPHS": "1"})
        gpu.check_graphs(tern, {"cuGraphLaunch": 2})
        with self.assertRaisesRegex(SystemExit, "no graph was launched"):
            gpu.check_graphs(tern, {"cuLaunchKernelEx": 20})
        tern.environment["TERN_GRAPHS"] = "0"
        gpu.check_graphs(tern, {"cuLaunchKernelEx": 20})

    def test_nothing_was_counted(self):
        tern = types.SimpleNamespace(environment=dict(os.environ), command=lambda *job: ["sh", "-c", "echo trace: CUPTI cannot watch >&2"])
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(SystemExit, "nothing was counted: trace: CUPTI cannot watch"):
            gpu.calls(tern, ("mlp", 8, None, "f32", 3, 3), 10, "/nowhere.so", folder)


class Goals(unittest.TestCase):
    ROWS = [{"kernel": "sgd", "bytes_a_call": 5e8, "copy_percent": 91.0}, {"kernel": "sgd", "bytes_a_call": 4e3, "copy_percent": 1.0},
            {"kernel": "batch_norm", "bytes_a_call": 2e8, "copy_percent": 84.0}, {"kernel": "adam", "bytes_a_call": 1e6, "copy_percent": 99.0}]

    def test_each_has_a_verdict(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            gpu.say_goals({"nets": {"mlp": {}, "resnet50": {"profile": {"rows": self.ROWS}}}, "kernels": []})
        lines = dict(line.split(": ", 1) for line in out.getvalue().strip().splitlines())
        self.assertEqual(list(lines), list(gpu.MEMORY_BOUND))
        self.assertEqual(lines["sgd"], "91 to 91 % of a copy, goal 85: met")
        self.assertEqual(lines["batch_norm"], "84 to 84 % of a copy, goal 85: not met")
        self.assertTrue(lines["adam"].startswith("no call large enough"))


class Names(unittest.TestCase):
    def test_mistakes(self):
        done = subprocess.run([os.path.join(GPU, "run.sh"), "--only", "mlp,vgg"], env={**os.environ, "TORCH_PYTHON": sys.executable},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("argument --only: expected some of resnet50,unet3d,mlp,kernels, got 'vgg'", done.stderr)


class All(unittest.TestCase):
    """scripts/gpu.sh with a build folder and a ctest of the test's own."""

    # Says what it was asked for. gpu/graphs fails unless graphs are left out, and gpu/device always.
    CTEST = """#!/bin/sh
        echo "ctest without ${TERN_CUDA_WITHOUT-nothing}: $*"
        mkdir -p "$2/Testing/Temporary"
        cd "$2/Testing/Temporary"
        case $*,${TERN_CUDA_WITHOUT-} in *gpu*graphs*graphs*) ;; *-L*|*graphs*) echo 7:gpu/graphs >> LastTestsFailed.log ;; esac
        case $* in *-L*|*device*) echo 9:gpu/device >> LastTestsFailed.log ;; esac
        [ ! -e LastTestsFailed.log ] || exit 8
        """

    def run_parts(self, driver, *arguments, ctest="#!/bin/sh"):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "tests"))
            for name, text in (("tests/driver", f"#!/bin/sh\n{driver}\n"), ("ctest", ctest)):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
                os.chmod(file.name, 0o755)
            out = os.path.join(folder, "out")
            around = {**os.environ, "TERN_BUILD": folder, "PATH": f"{folder}:{os.environ['PATH']}", "TORCH_PYTHON": "/bin/false"}
            done = subprocess.run([os.path.join(GPU, "../../scripts/gpu.sh"), *arguments[:-1], out, *arguments[-1]], env=around,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if not os.path.isdir(out):
                return done.returncode, done.stdout, None
            with open(os.path.join(out, "summary.txt")) as summary, open(os.path.join(out, "log.txt")) as log:
                self.assertEqual(log.read(), done.stdout)
                return done.returncode, done.stdout, summary.read()

    def test_how_a_part_ends(self):
        code, out, summary = self.run_parts("echo all is well", ["driver"])
        self.assertEqual(code, 0)
        self.assertIn("all is well", out)
        self.assertRegex(summary, r"^driver: passed after \d s\n$")
        code, _, summary = self.run_parts("exit 3", ["driver"])
        self.assertEqual(code, 1)
        self.assertRegex(summary, r"^driver: failed \(3\) after \d s\n$")

    def test_a_part_that_hangs_is_cut_off_at_the_limit(self):
        code, _, summary = self.run_parts("exec sleep 60", "--seconds", "4", ["tests", "driver"])
        self.assertEqual(code, 1)
        self.assertRegex(summary, r"^driver: cut off after \d s\ntests: not started, the time is over\n$")

    def test_failed_tests_run_again_without_parts_of_the_plugin(self):
        code, out, summary = self.run_parts("", ["tests"], ctest=self.CTEST)
        self.assertEqual(code, 1)
        self.assertRegex(summary, r"""(?x)^tests:\ failed\ \(8\)\ after\ \d+\ s\n
            tests:\ failed:\ gpu/graphs\ gpu/device\n
            tests:\ without\ overlap,clusters,small_products,graphs,export:\ cured\ gpu/graphs\n
            tests:\ without\ overlap:\ cured\ nothing\n
            tests:\ without\ clusters:\ cured\ nothing\n
            tests:\ without\ small_products:\ cured\ nothing\n
            tests:\ without\ graphs:\ cured\ gpu/graphs\n
            tests:\ without\ export:\ cured\ nothing\n$""")
        self.assertRegex(out, r"(?m)^ctest without graphs: .* -R \^\(gpu/graphs\)\$")

    def test_driver_runs_once(self):
        for parts, excluded in ((["tests"], "^$"), (["driver", "tests"], "^gpu/driver$")):
            code, out, summary = self.run_parts("", parts, ctest="#!/bin/sh\necho ctest $*\n")
            self.assertEqual((code, summary.count(": passed")), (0, len(parts)))
            self.assertIn(f"-L gpu -LE sanitizer -E {excluded} -j 8\n", out)

    def test_tests_leave_time_to_later_parts(self):
        """60 % of the 5 or 4 whole seconds that are left: 3 or 2, after which the clock may show one more."""
        code, _, summary = self.run_parts("", "--seconds", "5", ["tests", "sanitizers"], ctest="#!/bin/sh\ncase $* in *-LE*) exec sleep 60 ;; esac\n")
        self.assertEqual(code, 1)
        self.assertRegex(summary, r"^tests: cut off after [234] s\nsanitizers: passed after \d s\n$")

    def test_compile_is_last(self):
        code, out, summary = self.run_parts("", ["compile", "driver"])
        self.assertEqual(code, 1)
        self.assertRegex(summary, r"^driver: passed after \d s\ncompile: failed \(1\) after \d s\n$")

    def test_mistakes(self):
        self.assertEqual(self.run_parts("", "--second", "1", ["driver"]), (2, "gpu.sh: unknown option --second\n", None))
        code, out, _ = self.run_parts("", ["driver", "vgg"])
        self.assertEqual((code, out), (2, "gpu.sh: unknown part vgg\n"))


class Pack(unittest.TestCase):
    """scripts/pack.sh, with a build of empty files, unpacked by Python beside another checkout."""

    FILES = ("tests/cuda/test_a.c", "bench/b.py", "build/tern", "build/bench_parts", "build/libtern.so", "build/tern_cuda.so", "build/tern_nccl.so", "build/tern_gloo.so")

    def make(self, *names):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name in names:
            path = os.path.join(folder.name, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(name)
        return folder.name

    def read_packed(self, folder):
        done = subprocess.run(["sh", "-c", ". build/packed.sh"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_other_tests_are_said(self):
        source, there = self.make(*self.FILES), self.make(*self.FILES[:2], "bench/__pycache__/b.pyc")
        os.mkdir(os.path.join(source, "scripts"))
        shutil.copy(os.path.join(GPU, "../../scripts/pack.sh"), os.path.join(source, "scripts"))
        os.makedirs(os.path.join(source, "build/tests"), exist_ok=True)
        for name in ("CTestTestfile.cmake", "CTestCustom.cmake", "tests/libtern_internal.so"):
            open(os.path.join(source, "build", name), "w").close()
        pack = os.path.join(source, "build", "pack.tar.xz")
        subprocess.run([os.path.join(source, "scripts/pack.sh"), os.path.join(source, "build"), pack], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sys.executable, "-m", "tarfile", "-e", pack, "."], cwd=there, check=True)
        self.assertEqual(self.read_packed(there), "")
        with open(os.path.join(there, "tests/cuda/test_a.c"), "a") as file:
            file.write("changed")
        self.assertIn("packed.sh: tests/ or bench/ are not those of this build: its commit is unknown; check that out, or pack again", self.read_packed(there))


class OnGpu(unittest.TestCase):
    """tests/cuda/on_gpu.sh on a machine whose nvidia-smi lists a GPU."""

    def test_python_without_pytorch(self):
        script = os.path.join(os.environ["TERN_SOURCE"], "tests", "cuda", "on_gpu.sh")
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("nvidia-smi", "echo GPU 0: one"), ("python", "echo no module; exit 1")):
                with open(os.path.join(folder, name), "w") as file:
                    file.write(f"#!/bin/sh\n{text}\n")
                os.chmod(file.name, 0o755)
            around = {**os.environ, "TERN_TEST_SKIPS": "", "PATH": f"{folder}:{os.environ['PATH']}", "TORCH_PYTHON": os.path.join(folder, "python")}
            done = subprocess.run([script, "/nowhere/torch/test_sgd.py"], env=around, stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, skips.SKIPPED)
            self.assertRegex(done.stdout, r"^skipped: all: .*/python cannot import PyTorch .*: no module\n$")
            done = subprocess.run([script, "echo", "ran"], env=around, stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.stdout, "ran\n")


class Devices(unittest.TestCase):
    """torch/ops.py opens a real GPU, or an emulated one that measures, once for all that ask for the same; other emulated ones for each."""

    class Counting:
        def __init__(self):
            self.opened = 0

        def check(self, name, *args):
            self.opened += name == "tern_device_open"
            return self.opened

        def tern_device_close(self, device):
            pass

    def opened(self, **around):
        library, keep = self.Counting(), ops.KEPT.copy()
        with mock.patch.dict(os.environ, {"TERN_TEST_DEVICE": "cuda:0", **around}), mock.patch.dict(ops.KEPT, clear=True):
            devices = [ops.open_device(library, "cpu") for _ in range(3)] + [ops.open_device(library, "cpu", 2), ops.open_device(library, "cpu:reference")]
            with mock.patch.dict(os.environ, TERN_CUDA_WITHOUT="graphs"):
                devices.append(ops.open_device(library, "cpu"))
        self.assertEqual(ops.KEPT, keep)
        return [(device.value, closes) for device, closes in devices]

    def test_real_ones_are_kept(self):
        self.assertEqual(self.opened(TERN_TEST_GPUS="1"), [(1, False), (1, False), (1, False), (2, False), (3, True), (4, False)])

    def test_emulated_ones_that_measure_are_kept_until_the_exit(self):
        with mock.patch("atexit.register") as register:
            self.assertEqual(self.opened(TERN_TEST_FEW="1"), [(1, False), (1, False), (1, False), (2, False), (3, True), (4, False)])
        self.assertEqual([(call.args[0].__name__, call.args[1].value) for call in register.mock_calls], [("tern_device_close", n) for n in (1, 2, 4)])

    def test_other_emulated_ones_are_not(self):
        self.assertEqual(self.opened(), [(number, True) for number in range(1, 7)])


class OnTheCpu:
    """A substitute for the parts of torch.cuda that step.py uses; a recorded graph replays the step itself."""

    def __init__(self, made):
        self.made = made

    def replay(self):
        self.made[0].step()
        self.made[0].done -= 1


class Step(unittest.TestCase):
    """step.py runs as many steps as `tern bench step` in every way."""

    def losses(self, way):
        made = []
        nothing = lambda *args, **options: contextlib.nullcontext()  # noqa: E731
        fakes = {name: nothing for name in ("stream", "graph", "empty_cache", "reset_peak_memory_stats")}
        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        fakes.update(Stream=lambda: stream, current_stream=lambda: stream, CUDAGraph=lambda: OnTheCpu(made))
        sgd = step.torch.optim.SGD
        with mock.patch.multiple(step.torch.cuda, **fakes), mock.patch.object(step.torch.Tensor, "cuda", lambda self: self), \
                mock.patch.object(step.torch.nn.Module, "cuda", lambda self: self), \
                mock.patch.object(step.torch.optim, "SGD", lambda *args, fused, **options: sgd(*args, **options)):
            made.append(step.Step(types.SimpleNamespace(model="mlp", batch=8, size=None, dtype="f32", way=way)))
            first = made[0].warm_up(5)
            for _ in range(2):
                last = made[0].run()
        return made[0].done, first, last

    def test_losses_are_terns(self):
        argv = [gpu.TERN, "bench", "step", "--device", "cpu", "--batch", "8", "--warm-up", "5", "--steps", "2", "--json"]
        tern = json.loads(gpu.output(argv))
        done, first, last = self.losses("eager")
        self.assertEqual(done, 7)
        self.assertAlmostEqual(first, tern["loss_first"], delta=1e-4)
        self.assertAlmostEqual(last.item(), tern["loss_last"], delta=1e-3)

    def test_a_recording_is_no_step(self):
        done, first, _ = self.losses("graph")
        self.assertEqual(done, 7)
        self.assertAlmostEqual(first, self.losses("eager")[1], places=6)


if __name__ == "__main__":
    skips.main()
