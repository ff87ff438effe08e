# shellcheck shell=bash disable=SC2034
# What became of a launch of millrace, and whether another one makes sense. Sourced by slurm/requeue.sh and scripts/supervise.
# Exit codes alone do not tell: srun and mpirun give the largest of all ranks, or their own.

max_failures=${MILLRACE_MAX_FAILURES:-3}
run_dir="" out_dir="" pipeline_dir=""  # what find_folders finds: the run's folder, where results go, model.pipeline

say() { printf '[%s %s] %s\n' "${supervisor:-supervise}" "$(date +%H:%M:%S)" "$*"; }

# json_value FILE KEY: the first value of that name, without its quotes; nothing where there is none.
json_value() {
  grep -oE "\"$2\": *(\"([^\"\\\\]|\\\\.)*\"|-?[0-9][-+.0-9eE]*|true|false|null)" "$1" 2> /dev/null | head -n 1 |
    sed -E "s/^\"$2\": *//; s/^\"(.*)\"\$/\1/"
}

# find_folders PROGRAM COMMAND ARGUMENT...: asks the program itself where it will write; its complaint and code if it refuses.
find_folders() {
  local config code=0
  config=$(mktemp)
  "$@" --print-config=json > "$config" || code=$?
  if ((code == 0)); then
    run_dir=$(json_value "$config" dir)
    pipeline_dir=$(json_value "$config" pipeline)
    out_dir=$run_dir
    case $2 in
      download) out_dir=$(json_value "$config" out) ;;
      preprocess) out_dir=$(json_value "$config" cache) ;;
    esac
  fi
  rm -f "$config"
  return "$code"
}

interrupted=0
# For traps: what await waits for is not over yet.
interrupt() { interrupted=1; }
# `wait` that signals interrupt, but do not end; returns what the process did.
await() {
  local code=1 got
  while :; do
    interrupted=0
    wait "$1"
    got=$?
    if ((got != 127)); then code=$got; fi  # 127: ended just before the last signal, and `code` is right already
    if ((!interrupted)); then return "$code"; fi
  done
}

# A number that grows when something was brought to safety: the newest checkpoint's step, or the files of the other commands.
progress() {
  local newest
  if [[ -n $run_dir && $out_dir == "$run_dir" ]]; then
    newest=$(find "$run_dir/checkpoints" -maxdepth 1 -name 'step-[0-9]*[0-9]' 2> /dev/null | sed 's/.*step-0*//' | sort -n | tail -n 1)
    echo "${newest:-0}"
  else
    find "$out_dir" -type f -name '*.json' 2> /dev/null | wc -l
  fi
}

# Which STATE this is: it is replaced, never changed, so another inode or date means that the launch wrote it.
state_stamp() { stat -c '%i %y' "$run_dir/STATE" 2> /dev/null || echo none; }

before_launch() {
  stamp_before=$(state_stamp)
  if [[ -n $run_dir ]]; then rm -rf "${run_dir:?}/fault"; fi
}

fault_files() { find "$run_dir/fault" -name 'rank-*.json' 2> /dev/null | sort; }

# verdict CODE: what the launch asks for: done; requeue (stopped in order); person, with the code for them; restart.
verdict() {
  local code=$1 exit_of_rank file state
  for exit_of_rank in "$code" $(fault_files | while read -r file; do json_value "$file" exit; done); do
    case $exit_of_rank in 2 | 77 | 78) echo "person $exit_of_rank"; return ;; esac
  done
  state=$(json_value "$run_dir/STATE" state)
  if [[ -z $run_dir || $(state_stamp) == "$stamp_before" ]]; then
    # This launch wrote no STATE: there was nothing to do, it was stopped before it began, or it died.
    case $code in
      0) if [[ -z $run_dir || -e $run_dir/DONE ]]; then state='done'; else state=died; fi ;;
      75) state=requeue ;;
      *) state=died ;;
    esac
  fi
  case $state in
    'done') echo 'done' ;;
    requeue) if [[ -n $(fault_files) ]]; then echo restart; else echo requeue; fi ;;
    *) echo restart ;;
  esac
}

# For people: the code, and what the ranks that left have said.
describe_end() {
  local file
  say "ended with code $1, STATE says $(json_value "$run_dir/STATE" state || true), $(progress) reached"
  fault_files | while read -r file; do
    say "  rank $(json_value "$file" rank) on $(json_value "$file" host), $(json_value "$file" phase): $(json_value "$file" reason)"
  done
}

# Restarts in a row without progress are counted in a file beside the results, because a requeued job begins anew.
# False when there were enough of them.
may_restart() {
  local file="$out_dir/restarts" reached before=-1 count=0
  reached=$(progress)
  mkdir -p "$out_dir"
  if [[ -s $file ]]; then read -r before count < "$file"; fi
  if ((reached > before)); then count=0; fi
  count=$((count + 1))
  echo "$reached $count" > "$file"
  if ((count > max_failures)); then
    say "no progress in $max_failures restarts, still at $reached: giving up"
    say "hint: $out_dir/restarts counts them; remove it to try again once the cause is gone"
    return 1
  fi
  say "restart $count of $max_failures without progress"
}

forget_restarts() { rm -f "$out_dir/restarts"; }
