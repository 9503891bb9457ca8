# Runs in the guest: what programs do on a mounted export.
server=10.78.0.1
dir=/mnt/nfs
mkdir $dir

basics() {
  mkdir -p $dir/d/e
  echo one >$dir/d/a
  ln $dir/d/a $dir/d/b
  ln -s a $dir/d/c
  mv $dir/d/a $dir/d/e/
  [ "$(cat $dir/d/b)" = one ] && [ "$(stat -c %h $dir/d/b)" = 2 ]
  [ "$(ls $dir/d | tr '\n' ' ')" = "b c e " ]
  ls -la $dir/d >/dev/null
  chmod 640 $dir/d/b && [ "$(stat -c %a $dir/d/b)" = 640 ]
  truncate -s 5M $dir/d/sparse && [ "$(stat -c %s $dir/d/sparse)" = 5242880 ]
  echo two >>$dir/d/b && [ "$(cat $dir/d/e/a | tail -1)" = two ]
  for n in $(seq 300); do echo $n >$dir/d/e/$n; done
  [ "$(ls $dir/d/e | wc -l)" = 301 ]
  rm -r $dir/d
  [ ! -e $dir/d ]
}

locks() {
  python3 - $dir/lock <<'P'
import fcntl, os, sys
file = open(sys.argv[1], "w+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
if os.fork() == 0:
    other = open(sys.argv[1], "r+")
    try:
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
        os._exit(1)
    except OSError:
        os._exit(0)
sys.exit(os.wait()[1])
P
}

# The host kills the server when this file is there.
killed() {
  head -c 3000000 /dev/urandom >/tmp/data
  for part in $(seq 40); do cat /tmp/data; done >/tmp/big
  for n in 1 2; do
    touch $dir/kill-server
    dd if=/tmp/big of=$dir/big-$1-$n bs=1M conv=fsync
    md5sum </tmp/big >>/run/share/sums-$1
  done
}

clone() {
  git clone -q /run/share/repository $dir/clone
  git -C $dir/clone fsck --no-dangling
  [ -z "$(git -C $dir/clone status --porcelain)" ]
  rm -rf $dir/clone
}

build() {
  mkdir $dir/c
  for n in $(seq 20); do echo "int f$n(int x) { return x + $n; }" >$dir/c/f$n.c; done
  { for n in $(seq 20); do echo "int f$n(int);"; done
    echo "int main(void) { int x = 0;"
    for n in $(seq 20); do echo "x = f$n(x);"; done
    echo "return x == 210 ? 0 : 1; }"; } >$dir/c/main.c
  printf 'all: main\nmain: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n' >$dir/c/Makefile
  make -s -C $dir/c
  $dir/c/main
  rm -r $dir/c
}

for version in 3,nolock,proto=tcp,port=2049,mountport=20048 4.1 4.2; do
  name=${version%%,*}
  timeout 60 mount -t nfs -o vers=$version $server:/lab $dir
  for step in basics locks "killed $name" clone build; do
    $step
    echo "v$name: ${step%% *} ok, $(cut -d' ' -f1 /proc/uptime) s"
  done
  umount $dir
done
