#!/bin/sh
# What the container runs, and what the tests run without one: say where it runs, then reproduce.
set -eu
python -c 'import platform, torch; print(platform.platform(), "torch", torch.__version__)'
python -m bilinear_wm.tasks.scene # a container without EGL is found out now, not after an hour
exec bwm reproduce "$@"
