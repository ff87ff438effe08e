# shellcheck shell=bash disable=SC2006,SC2034,SC2154,SC2207
# The nodes of a job: how many tasks each gets, and which ones a launch does without. Sourced by slurm/requeue.sh, whose functions and
# variables it shares.

# The nodes the job still has: NODE GPUS, a line each. After a node's death --no-kill leaves a job with fewer than at the start.
nodes_of_job() {
  local list gres count item node
  scontrol show job -d "$SLURM_JOB_ID" | sed -n 's/^ *Nodes=\([^ ]*\) .*GRES=\(.*\)$/\1 \2/p' | sed 's/([^)]*)//g' |
    while read -r list gres; do
      count=0
      for item in ${gres//,/ }; do
        if [[ $item == gpu:* ]]; then count=$((count + ${item##*:})); fi
      done
      for node in `scontrol show hostnames "$list"`; do echo "$node $count"; done
    done
}

# SLURM_TASKS_PER_NODE, 3,1(x2), as numbers.
tasks_per_node() {
  local item spread=${SLURM_TASKS_PER_NODE:-1}
  for item in ${spread//,/ }; do
    if [[ $item =~ ^([0-9]+)\(x([0-9]+)\)$ ]]; then
      yes "${BASH_REMATCH[1]}" | head -n "${BASH_REMATCH[2]}"
    else
      echo "$item"
    fi
  done
}

# spread_fits_gpus COUNT: whether tasks_on has as many, each with a GPU.
spread_fits_gpus() {
  local left=$1 node
  for node in "${nodes[@]}"; do
    if ((tasks_on[$node] > gpus_on[$node])); then return 1; fi
    left=$((left - tasks_on[$node]))
  done
  ((left == 0))
}

# deal_tasks COUNT: into tasks_on, one to each node in turn that has a GPU without one.
deal_tasks() {
  local left=$1 node
  for node in "${nodes[@]}"; do tasks_on[$node]=0; done
  while ((left > 0)); do
    for node in "${nodes[@]}"; do
      if ((left > 0 && tasks_on[$node] < gpus_on[$node])); then
        tasks_on[$node]=$((tasks_on[$node] + 1)) left=$((left - 1))
      fi
    done
  done
}

# Of a heterogeneous job a line for each number that its components have.
cpus_of_task() { scontrol show job -o "$SLURM_JOB_ID" | grep -oE ' CPUs/Task=[^ ]*' | cut -d= -f2- | sort -u; }

# Decides once how many tasks each node gets: as Slurm has spread them, since a node that other jobs share may have CPUs
# for no more. Where that gives a node more than its GPUs, though there are GPUs for all, they are dealt anew. If the job
# asked for no number: one per GPU, else one a node.
plan_tasks() {
  local found node gpus i total=0 spread tasks=${SLURM_NTASKS:-} wanted
  declare -gA tasks_on gpus_on
  cpus_per_task=`patiently cpus_of_task` || no_answer "scontrol does not tell the CPUs of a task of job $SLURM_JOB_ID"
  [[ $cpus_per_task =~ ^[0-9]+$ ]] || cpus_per_task=1  # N/A, or several numbers, while a step of all components takes one
  found=(`patiently nodes_of_job`) || no_answer "scontrol does not tell the nodes of job $SLURM_JOB_ID"
  nodes=()
  for ((i = 0; i < ${#found[@]}; i += 2)); do
    node=${found[i]} gpus=${found[i + 1]}
    nodes+=("$node")
    if [[ ${SLURM_GPUS_PER_NODE:-} == 0 ]]; then gpus=0; fi  # --exclusive gives them all the same
    gpus_on[$node]=$gpus tasks_on[$node]=0
    total=$((total + gpus))
  done
  min_nodes=${MILLRACE_MIN_NODES:-$(((${#nodes[@]} + 1) / 2))}
  if [[ -n ${SLURM_HET_SIZE:-} ]]; then return; fi
  spread=(`tasks_per_node`)
  # Some Slurms (23.02.0 to .4) do not tell their number where --ntasks-per-node does.
  if [[ -z $tasks && -n ${SLURM_NTASKS_PER_NODE:-} ]]; then for i in "${spread[@]}"; do tasks=$((tasks + i)); done; fi
  i=0
  for node in `scontrol show hostnames "$SLURM_JOB_NODELIST"`; do
    if [[ -n $tasks ]]; then tasks_on[$node]=${spread[i]:-0}; else tasks_on[$node]=1; fi
    i=$((i + 1))
  done
  if ((total == 0)); then return; fi
  wanted=${tasks:-$total}
  if ((wanted <= total)) && ! spread_fits_gpus "$wanted"; then deal_tasks "$wanted"; fi
  if ((wanted != total)); then say "$wanted tasks as asked for, though the job has $total GPUs"; fi
  if ((wanted > total)); then say "hint: -n sets the tasks, -C the nodes of each kind, such as -C '[a10g*48&a100*4]'"; fi
}

# nodes_in_state PATTERN: those of the job that Slurm calls so.
nodes_in_state() {
  local IFS=,
  sinfo -a -h -N -n "${nodes[*]}" -o '%N %T' | grep -iE " ($1)" | cut -d' ' -f1 | sort -u
}

# A node may start a step and yet be without the file system, or start none and be called well (NOTE [Nothing started]). What it says is in
# a file of the node's name.
# shellcheck disable=SC2016  # expanded where it runs
answers() {
  timeout -k 5 60 "${small_step[@]}" --nodelist="$1" sh -c \
    'command -v "$0" > /dev/null && test -d "$1" && echo well || { echo "it has no $0, or no $1"; exit 1; }' "$MILLRACE" "$PWD" \
    &> "$scratch/answer.$1" && grep -qx well "$scratch/answer.$1"
}

# answer_together NODE...: those that say their name in one step on all of them. Beside a dead node or one that hangs, the others do.
# shellcheck disable=SC2016  # expanded where it runs
answer_together() {
  local IFS=,
  timeout -k 5 60 "${small_step[@]}" --nodes=$# --ntasks=$# --nodelist="$*" sh -c \
    'if command -v "$0" > /dev/null && test -d "$1"; then echo "$SLURMD_NODENAME"; fi' "$MILLRACE" "$PWD" 2> /dev/null
}

# silent NODE...: those on which a step does not start within a minute. Slurm itself notices a dead node only after SlurmdTimeout,
# minutes later. 64 at a time: a controller that has to start hundreds at once takes longer than that.
silent() {
  local node
  while (($#)); do
    for node in "${@:1:64}"; do { answers "$node" || echo "$node"; } & done
    wait
    shift $(($# < 64 ? $# : 64))
  done
}

# silent_nodes NODE...: of `nodes`, where those given are still the job's: no step starts beside others. First all by one step: a job has
# 40,000 (MaxStepCount), which a step for each of a thousand nodes would use up in 40 restarts. Who does not answer there is asked alone,
# twice, for the same reason as above; and a signal to the job's steps may have ended the first.
silent_nodes() {
  local answered once
  answered=`answer_together "$@"`
  once=(`printf '%s\n' "${nodes[@]}" | grep -vxF "$answered"`)
  once=(`silent "${once[@]}"`)
  silent "${once[@]}"
}

# NODE for each rank that ended with 76; the ranks' order is that of `placed`.
suspect_nodes() {
  local code rank host
  faults | while read -r code rank host; do
    if [[ $code != 76 ]]; then continue; fi
    if [[ -n $host && -n ${tasks_on[$host]:-} ]]; then
      echo "$host"
    elif ((rank < ${#placed[@]})); then
      echo "${placed[rank]}"
    fi
  done | sort -u
}

# Of this start of the job: NODE (REASON at TIME).
left_out=()

# on_nodes: for people, on how many of its nodes the job goes on, and without which; ten of these.
on_nodes() {
  local count=${#left_out[@]} all=$((${#nodes[@]} + ${#left_out[@]})) names
  printf -v names '%s, ' "${left_out[@]:0:10}"
  names=${names%, }
  if ((count > 10)); then names+=", and $((count - 10)) more"; fi
  if ((count > 0)); then
    echo "on ${#nodes[@]} of $all nodes, without $names"
  elif ((all == 1)); then
    echo "on 1 node"
  else
    echo "on $all nodes"
  fi
}

# leave_out NODE REASON [DETAIL]: notes one that drop_nodes takes out. The job's next start gets its nodes anew and knows nothing of it, so a
# file tells which ones come again. Not without a run's folder: evaluate's is another job's, and `download.out` is read as data, lists included.
leave_out() {
  local now file=$run_dir/nodes.tsv
  utc_now now
  left_out+=("$1 ($2 at $now)") reduced=1
  if [[ -z $run_dir ]]; then return; fi
  { mkdir -p "$run_dir" && printf '%s\t%s\t%s\t%s\t%s\n' "$now" "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$1" \
    "$2${3:+: ${3//[[:cntrl:]]/ }}" >> "$file"; } 2> /dev/null || say "$file cannot be written: later starts do not know of node $1"
}

# hint_at_often NODE...: these were left out just now; of those that were so before, within 30 days, people are told.
hint_at_often() {
  local file=$run_dir/nodes.tsv since often again excluded node
  if [[ -z $run_dir ]] || (($# == 0)); then return; fi
  printf -v since '%(%s)T' -1
  TZ=UTC0 printf -v since '%(%FT%TZ)T' $((since - 30 * 86400))
  often=(`awk -F '\t' -v since="$since" '$1 >= since && $5 != "drained" && ++times[$4] == 2 { print $4 }' "$file" 2> /dev/null`)
  again=(`for node; do if [[ " ${often[*]} " == *" $node "* ]]; then echo "$node"; fi; done`)
  if ((${#again[@]} == 0)); then return; fi
  say "hint: node ${again[*]} stands more than once in $file: tell the site"
  excluded=`job_field ExcNodeList`
  if [[ $excluded == '(null)' ]]; then excluded=""; fi
  local IFS=,
  excluded+=${excluded:+,}${often[*]}
  say "hint: scontrol update JobId=$SLURM_JOB_ID ExcNodeList=$excluded keeps the job from it, once that is PENDING"  # a running job takes none
}

# Takes the nodes that are gone, broken or suspect out of `nodes`.
# NOTE [Steps beside a dead node] Slurm (22.05) never frees what the step of a dead node held on the other nodes, so a new step
# must overlap it; and --gpus of a step that overlaps is spread wrongly over nodes with different numbers of GPUs. Such a job has
# to go back to the queue.
drop_nodes() {
  local node left=() there=() suspects still quiet answer failed=()
  local -A here dead drained
  until still=`patiently nodes_of_job`; do  # no step starts without it either
    say "Slurm's controller does not answer: nothing is known of the nodes"
    if [[ -n $told ]]; then return; fi
  done
  for node in `echo "$still" | cut -d' ' -f1`; do here[$node]=1; done
  for node in "${nodes[@]}"; do
    if [[ -n ${here[$node]:-} ]]; then there+=("$node"); fi
  done
  quiet=(`silent_nodes "${there[@]}"`)
  if ((${#quiet[@]} == ${#nodes[@]})); then
    say "no step starts on any node: nothing is known of the nodes: `tail -n 1 "$scratch/answer.${nodes[0]}" 2> /dev/null`"
    quiet=()
  fi
  for node in `nodes_in_state 'down|fail'` "${quiet[@]}"; do dead[$node]=1; done  # a * means that an answer came late: they are asked
  # A node that is drained may go on as it is, unless its settings fit no more: then it may be for a GPU that was lost.
  if [[ $what == person ]]; then
    for node in `nodes_in_state drain`; do drained[$node]=1; done
  fi
  # Where several nodes are named, some of them only waited for the culprit, and nothing is known.
  suspects=(`suspect_nodes`)
  if ((${#suspects[@]} > 1)); then suspects=(); fi
  for node in "${nodes[@]}"; do
    if [[ -n ${dead[$node]:-} || -z ${here[$node]:-} ]]; then
      answer=`tail -n 1 "$scratch/answer.$node" 2> /dev/null`
      say "going on without node $node, which does not answer: $answer"
      leave_out "$node" "no answer" "$answer"
      failed+=("$node") node_died=1
    elif [[ -n ${drained[$node]:-} ]]; then
      say "going on without node $node, which Slurm has drained"
      leave_out "$node" drained
    elif [[ $node == "${suspects[*]}" ]]; then
      say "going on without node $node, which a rank that ended with 76 ran on"
      leave_out "$node" 76
      failed+=("$node")
    else
      left+=("$node")
    fi
  done
  nodes=("${left[@]}")
  hint_at_often "${failed[@]}"
  if ((node_died)) && ((`for node in "${nodes[@]}"; do echo "${gpus_on[$node]}"; done | sort -u | wc -l` > 1)); then
    requeue_job "no step over nodes of several kinds can start beside a dead node"
  fi
}
