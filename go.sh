cd /root/w/t16/crates/cli; export TMPDIR=/root/w/t16-tmp; bin=$(ls -t /root/w/t16/target/debug/deps/$1-* | grep -v '\.d$' | head -1); shift
timeout 280 $bin --nocapture --test-threads 1 "$@" 2>&1 | grep -v "^running\|^$\|WARN" | tail -${T:-12}
