# shellcheck shell=sh
# Sourced by the scripts of the README: shows that a phase which takes minutes is alive, and how long it took. On a terminal one line is written
# over and over; in a pipe there is a line every five seconds.

# Shows the seconds and the last line of the output until it is killed. `shown`: the output itself is shown, so only silence is told.
phase_heartbeat() {
    began=$(date +%s) told=$began before=''
    while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        now=$(date +%s)
        if [ ! -t 1 ] || [ "$1" = shown ]; then
            [ $((now - told)) -ge 5 ] || continue
        fi
        told=$now
        if [ "$1" = shown ]; then
            size=$(wc -c <"$phase_log")
            [ "$size" != "$before" ] || echo "  .. $((now - began)) s"
            before=$size
            continue
        fi
        # shellcheck disable=SC2016
        last=$(tail -c 400 "$phase_log" | tr '\r' '\n' | sed -n '/[^ ]/h;${x;p;}' | cut -c1-60)
        if [ -t 1 ]; then
            printf '\r\033[K  %d s  %s' $((now - began)) "$last"
        else
            printf '  %d s  %s\n' $((now - began)) "$last"
        fi
    done
}

# SIGTERM could reach the heartbeat before it has dropped the script's traps, and be lost.
phase_end() {
    [ -z "${phase_pulse:-}" ] || kill -KILL "$phase_pulse" 2>/dev/null || :
    phase_pulse=''
}
trap phase_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# phase TITLE EXPECTED COMMAND..: runs the command and keeps its output in a file, whose end is shown if it fails.
phase() {
    title=$1 phase_began=$(date +%s) phase_log=$(mktemp)
    echo "$title: $2"
    shift 2
    phase_heartbeat hidden &
    phase_pulse=$! status=0
    "$@" >"$phase_log" 2>&1 || status=$?
    phase_end
    [ ! -t 1 ] || printf '\r\033[K'
    if [ $status != 0 ]; then
        tail -n 25 "$phase_log" >&2
        echo "$title: failed after $(($(date +%s) - phase_began)) s; the whole output is in $phase_log" >&2
        return $status
    fi
    rm -f "$phase_log"
    echo "$title: done in $(($(date +%s) - phase_began)) s"
}

# phase_shown COMMAND..: runs the command with its output shown, and tells that it still runs when it says nothing.
phase_shown() {
    phase_log=$(mktemp)
    phase_heartbeat shown &
    phase_pulse=$!
    { "$@" 2>&1 && echo 0 >"$phase_log.status" || echo $? >"$phase_log.status"; } | tee "$phase_log"
    phase_end
    status=$(cat "$phase_log.status")
    rm -f "$phase_log" "$phase_log.status"
    return "$status"
}
