# shellcheck shell=bash
# NVIDIA's MPS control daemon: the 550 build starts and answers without a driver or a GPU; 580 and later do not.

part_mps() {
  local binary=$CACHE/bin/nvidia-cuda-mps-control
  if [ ! -x "$binary" ]; then
    say "mps: fetching nvidia-cuda-mps"
    unpack nvidia-cuda-mps "$CACHE/mps"
    mkdir -p "$CACHE/bin"
    ln -sfn "$(find "$CACHE/mps" -name nvidia-cuda-mps-control -type f -print -quit)" "$binary"
  fi
  [ -x "$binary" ] || die "the package nvidia-cuda-mps has no nvidia-cuda-mps-control any more"
  say "mps: $binary"
}
