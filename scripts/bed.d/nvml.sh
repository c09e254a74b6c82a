# shellcheck shell=bash
# NVIDIA's own user library without a driver: the build of the MPS daemon's release, which has every function but those
# that came later. Used as root it makes /dev/nvidiactl, which whoever loads it has to remove again.

part_nvml() {
  local library=$CACHE/lib/libnvidia-ml.so.1
  if [ ! -e "$library" ]; then
    say "nvml: fetching libnvidia-ml1"
    unpack libnvidia-ml1 "$CACHE/nvml"
    mkdir -p "$CACHE/lib"
    ln -sfn "$(find "$CACHE/nvml" -name 'libnvidia-ml.so.*' -type f -print -quit)" "$library"
  fi
  [ -e "$library" ] || die "the package libnvidia-ml1 has no libnvidia-ml.so any more"
  say "nvml: $(readlink -f "$library")"
}
