# shellcheck shell=bash
# A test image of 2 MB that comes from no registry: one static busybox and a link for each of its words.

BUSYBOX_RECIPE=1

make_busybox() {
  local tree=$CACHE/busybox/tree
  unpack busybox-static "$CACHE/busybox"
  mkdir -p "$tree"/{bin,etc,home,proc,sys,tmp,root,var/tmp}
  chmod 1777 "$tree/tmp" "$tree/var/tmp"
  cp "$(find "$CACHE/busybox" -path "*/bin/busybox" -type f -print -quit)" "$tree/bin/busybox"
  "$tree/bin/busybox" --list | while read -r applet; do
    [ "$applet" = busybox ] || ln -s busybox "$tree/bin/$applet"
  done
  printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$tree/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$tree/etc/group"
  tar -C "$tree" --owner=0 --group=0 --numeric-owner -cf "$CACHE/busybox.tar.part" .
  mv "$CACHE/busybox.tar.part" "$CACHE/busybox.tar"
  rm -rf "$CACHE/busybox"
}

part_image() {
  need engine
  # The tests load it into engines of their own, so that it is needed even where this engine has the image.
  make_once busybox "$CACHE/busybox.tar"
  import_image "$PLAIN_SOCKET" "$BUSYBOX_IMAGE" "$BUSYBOX_RECIPE" "$CACHE/busybox.tar" busybox
  "$DOCKER" -H "unix://$PLAIN_SOCKET" run --rm "$BUSYBOX_IMAGE" true ||
    die "the engine on $PLAIN_SOCKET answers but cannot run a container; try to restart it"
  say "image: $BUSYBOX_IMAGE"
}
