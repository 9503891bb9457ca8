//! Everyday programs at work on one node, with a second one looking on: what each makes is whole,
//! and the same on both.

mod common;

use std::process::Command;

use common::{Cluster, can_mount, sh};

/// Whether a program is there. Says so where a test is skipped for want of it.
fn has(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let there = there.is_ok_and(|out| out.status.success());
    if !there {
        braid_testkit::skip(&format!("no {program} here"));
    }
    there
}

/// Runs a script in a directory on node A, with `$B` the same directory on node B.
fn on_two_nodes(programs: &[&str], script: &str) {
    if !can_mount() || !programs.iter().all(|p| has(p)) {
        return;
    }
    let c = Cluster::new(2, 256, 2);
    let (a, b) = (c.node(0).display(), c.node(1).display());
    let path = c.disks.path("script");
    std::fs::write(&path, format!("set -euo pipefail\ncd {a}\nA={a}\nB={b}\n{script}"))
        .expect("a script");
    sh(&format!("export HOME={}; timeout 120 bash {path}", c.disks.path("")));
    c.finish();
}

#[test]
fn git_keeps_its_repositories() {
    on_two_nodes(
        &["git"],
        r#"
export GIT_CONFIG_GLOBAL=$HOME/gitconfig
git config --global user.name T; git config --global user.email t@example.com
git config --global --add safe.directory '*'; git config --global init.defaultBranch main
git init -q origin
for n in $(seq 6); do
    mkdir -p origin/d$n; for f in $(seq 20); do seq $((n * f)) > origin/d$n/f$f; done
    git -C origin add -A; git -C origin commit -qm "change $n"
done
git clone -q --no-local origin clone
git -C clone checkout -q HEAD~2
git -C clone gc -q
git -C $B/clone fsck --strict --no-progress
test -z "$(git -C $B/clone status --porcelain)"
git -C $B/clone checkout -q main
test "$(git -C clone rev-parse HEAD)" = "$(git -C $B/origin rev-parse HEAD)"
test -z "$(git -C clone status --porcelain)"
"#,
    );
}

#[test]
fn archives_hold_what_was_there() {
    on_two_nodes(
        &["tar"],
        r"
mkdir tree; cd tree
for n in $(seq 200); do head -c $((n * 37)) /dev/urandom > f$n; done
mkdir -p deep/er; ln -s ../f1 deep/link; ln f2 deep/er/hard; mkfifo pipe; chmod 4750 f3
truncate -s 5M sparse; printf x | dd of=sparse bs=1 seek=3000000 conv=notrunc status=none
touch -d '1999-12-31 23:59:59.123456789' f4
cd $B; tar --format=posix --sparse -cf all.tar tree; mkdir back; tar -C back -xpf $A/all.tar
diff -r --no-dereference -x pipe $A/tree back/tree
list() { (cd $1; find . -printf '%p %y %m %n %T@ %l\n' | sort); }
diff <(list tree) <(list $A/back/tree)
",
    );
}

#[test]
fn c_programs_are_built() {
    on_two_nodes(
        &["gcc", "make"],
        r#"
for n in 1 2 3 4; do echo "int f$n(void) { return $n; }" > f$n.c; done
echo 'int f1(void), f2(void), f3(void), f4(void);
int main(void) { return f1() + f2() + f3() + f4() == 10 ? 0 : 1; }' > main.c
printf 'prog: f1.o f2.o f3.o f4.o main.o\n\tgcc -o $@ $^\n' > Makefile
make -s -j2
$B/prog
make -q -C $B
touch $B/f2.c
if make -q; then exit 1; fi
make -s; make -q -C $B
"#,
    );
}

#[test]
fn rust_programs_are_built() {
    on_two_nodes(
        &["cargo"],
        r#"
mkdir -p tiny/src; cd tiny
printf '[package]\nname = "tiny"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
echo 'fn main() { println!("hello"); }' > src/main.rs
export CARGO_TARGET_DIR=$A/target RUSTUP_HOME=${RUSTUP_HOME:-/root/.rustup} CARGO_HOME=${CARGO_HOME:-/root/.cargo}
cargo build -q --offline
test "$($B/target/debug/tiny)" = hello
echo 'fn main() { println!("again"); }' > $B/tiny/src/main.rs
cargo build -q --offline
test "$($B/target/debug/tiny)" = again
"#,
    );
}

#[test]
fn databases_of_two_nodes_lose_nothing() {
    on_two_nodes(
        &["python3"],
        r#"
cat > program.py <<'P'
import os, sqlite3, sys
A, B = sys.argv[1:]
def work(path, who):
    c = sqlite3.connect(path, timeout=60, isolation_level=None)
    for i in range(40):
        c.execute("begin immediate")
        v = c.execute("select v from c").fetchone()[0]
        c.execute("update c set v = ?", (v + 1,))
        c.execute("insert into t values (?, ?)", (who, "x" * 300))
        c.execute("commit")
    c.close()
# A write-ahead log's index is shared memory, for programs of one machine by its makers' word.
for mode, dirs in (("wal", (A, A)), ("delete", (A, B)), ("truncate", (A, B)), ("persist", (A, B))):
    c = sqlite3.connect(f"{A}/{mode}.db")
    assert c.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
    c.execute("create table c(v)"); c.execute("create table t(a, b)")
    c.execute("insert into c values (0)"); c.commit(); c.close()
    children = []
    for who, d in enumerate(dirs):
        pid = os.fork()
        if pid == 0:
            try: work(f"{d}/{mode}.db", who)
            except BaseException as e: print(repr(e), file=sys.stderr); os._exit(1)
            os._exit(0)
        children.append(pid)
    assert all([os.waitpid(pid, 0)[1] == 0 for pid in children])
    for d in (A, B):
        c = sqlite3.connect(f"{d}/{mode}.db")
        assert c.execute("select v, (select count(*) from t) from c").fetchone() == (80, 80), (mode, d)
        assert c.execute("pragma integrity_check").fetchone() == ("ok",), (mode, d)
        c.close()
P
python3 program.py $A $B
"#,
    );
}
