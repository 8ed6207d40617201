"""Opens TensorBoard's page in headless Chromium on a run that the library wrote. Checks that it shows a curve, two
curves in one chart, images, histograms and text, and saves a screenshot of each. scripts/board_page.sh lists the
requirements.

    board_page.py write LOGDIR     (under /usr/bin/python3, with TERN_BUILD)
    board_page.py show LOGDIR OUT  (under the peers' Python)"""
import contextlib
import math
import os
import re
import subprocess
import sys
import time


def write(folder):
    """Writes a training run like that of a 3-D U-Net: losses, a slice of a volume, its mask, weights that spread, a
    note."""
    import numpy
    from boards import Board

    rng = numpy.random.default_rng(0)
    board = Board(folder)
    z, y, x = numpy.mgrid[-1:1:8j, -1:1:48j, -1:1:48j]
    for step in range(60):
        board.scalar("learning_rate", 1e-3 * (1 + math.cos(math.pi * step / 60)) / 2, step)
        board.scalars("Loss/training", {"train_loss": math.exp(-step / 20), "val_loss": 0.1 + math.exp(-step / 25)}, step)
        if step % 10 == 0:
            board.histogram("weights", board.run.constant(rng.normal(step / 60, 0.2 + step / 60, 3000).astype("f")), step)
            ball = 2 - 3 * numpy.sqrt(x**2 + y**2 + z**2) + rng.normal(0, 1.5 / (1 + step / 5), (4, 1, 8, 48, 48))
            volume = board.run.constant(ball.astype("f"))
            board.image("images", volume, step, slice=3)
            board.image("predictions", volume, step, slice=3, threshold=0)
            board.run.end()
    board.hparams({"batch": 8, "rate": 1e-3, "optimizer": "adam"}, ["learning_rate"])
    board.text("setup", "# U-Net\n\n| batch | rate |\n|---|---|\n| 8 | 1e-3 |\n\nTrained by *tern*.", 0)
    board.close()


# Returns everything under a node, also inside shadow roots.
DEEP = """
const all = [];
(function walk(node) {
  for (const child of node.querySelectorAll('*')) { all.push(child); if (child.shadowRoot) walk(child.shadowRoot); }
})(document);
const shown = all.filter(e => e.getBoundingClientRect().width > 0);
"""
# For each page, an expression over `shown` that is true once the page is drawn.
TEXT = "shown.filter(e => !e.childElementCount).map(e => e.textContent.trim())"
PAGES = {
    "timeseries": f"['Loss_training_train_loss', '0.0523', 'Loss_training_val_loss', '0.1944'].every(t => {TEXT}.includes(t)) && shown.some(e => e.tagName == 'CANVAS')",
    "scalars": f"{TEXT}.includes('learning_rate') && shown.filter(e => e.tagName == 'VZ-LINE-CHART2' || e.tagName == 'CANVAS').length >= 2",
    "images": "shown.filter(e => e.tagName == 'IMG' && e.naturalWidth == 192 && e.naturalHeight == 48).length == 2",
    "histograms": "shown.filter(e => e.tagName == 'path' && e.closest('.histogram, g')).length >= 6",
    "distributions": f"{TEXT}.includes('weights') && shown.some(e => e.tagName == 'svg')",
    "hparams": f"['adam', '8.0000', 'learning_rate'].every(t => {TEXT}.includes(t))",
    "text": "shown.some(e => e.tagName == 'H1' && e.textContent == 'U-Net') && shown.some(e => e.tagName == 'TD' && e.textContent == '1e-3')",
}


@contextlib.contextmanager
def tensorboard(folder):
    """Starts TensorBoard; returns the page's address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0", "--host", "127.0.0.1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            if found:
                yield found.group()
                return
        raise RuntimeError("TensorBoard said no address")
    finally:
        server.terminate()
        server.communicate()


@contextlib.contextmanager
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000":
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


def show(folder, out):
    missing = []
    with tensorboard(folder) as address, browser() as driver:
        for page, is_drawn in PAGES.items():
            driver.get("about:blank")
            driver.get(f"{address}#{page}")
            deadline = time.monotonic() + 60
            while not (drawn := driver.execute_script(f"{DEEP} return {is_drawn};")) and time.monotonic() < deadline:
                time.sleep(0.2)
            time.sleep(1)  # until transitions have ended, for the screenshot only
            driver.save_screenshot(os.path.join(out, f"{page}.png"))
            print(f"{page}: {'seen' if drawn else 'NOT SEEN'}, {os.path.join(out, page)}.png")
            missing += [] if drawn else [page]
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(write(sys.argv[2]) if sys.argv[1] == "write" else show(*sys.argv[2:]))
