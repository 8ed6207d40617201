"""tern: the command itself, and tern info."""
import os
import re
import unittest

import job


class Command(unittest.TestCase):
    def test_help_and_version(self):
        for option in ("--help", "-h"):
            code, out, err = job.tern(option)
            self.assertEqual((code, err), (0, ""))
            for name in ("run", "inspect", "convert", "info", "bench"):
                self.assertRegex(out, rf"\n  {name} +\w")
        self.assertRegex(job.tern("--version")[1], r"^tern \d+\.\d+\.\d+\n$")

    def test_unknown_or_no_command(self):
        for args, text in (([], "expected a command\n"), (["fly"], 'expected a command, got "fly"\n')):
            code, out, err = job.tern(*args)
            self.assertEqual((code, out), (2, ""))
            self.assertTrue(err.startswith("tern: " + text))
            self.assertIn("usage: tern COMMAND", err)


class Info(unittest.TestCase):
    def test_rows(self):
        code, out, err = job.tern("info")
        self.assertEqual((code, err), (0, ""))
        rows = dict(line.split(None, 1) for line in out.splitlines())
        self.assertEqual("tern " + rows["tern"], job.tern("--version")[1].strip())
        self.assertLessEqual(int(rows["cores"].split()[0]), len(os.sched_getaffinity(0)))
        self.assertEqual(rows["page"], f"{os.sysconf('SC_PAGESIZE')} bytes")
        self.assertEqual((rows["devices"], rows["collectives"]), ("cpu, cpu:reference", "native, self"))
        for name in ("oneDNN", "zlib", "libsodium", "cJSON"):
            self.assertRegex(rows[name], r"^\d+\.\d+")
        self.assertEqual(len({re.match(r"\S+ +", line).end() for line in out.splitlines()}), 1, "two aligned columns")

    def test_features_are_the_processors(self):
        with open("/proc/cpuinfo") as file:
            flags = re.search(r"^flags\s*:(.*)$", file.read(), re.M)
        known = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}
        want = known & set(flags.group(1).split()) if flags else set()
        row = re.search(r"^features +(.*)$", job.tern("info")[1], re.M).group(1)
        self.assertEqual(set(row.split()) if want else set(), want)

    def test_takes_no_arguments(self):
        code, _, err = job.tern("info", "now")
        self.assertEqual((code, err), (2, 'tern info: expected no arguments, got "now"\n'))


if __name__ == "__main__":
    unittest.main()
