#!/usr/bin/env bash
# Submits both phases, the second to start when the first has ended well:
#   PHASE1_DIR=RUN1 PHASE2_DIR=RUN2 slurm/submit_phases.sh [sbatch flags] -- [overrides of both]
# PHASE1_CONFIG and PHASE2_CONFIG are other configurations than those of the two scripts, MILLRACE_CONFIG is one of both.
set -euo pipefail
home=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
export MILLRACE_HOME=${MILLRACE_HOME:-$home} PHASE1_DIR=${PHASE1_DIR:-} PHASE2_DIR=${PHASE2_DIR:-}
flags=()
while (($#)) && [[ $1 != -- ]]; do
  case $1 in
    -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --test-only)
      echo "submit_phases: --test-only submits no phase 1 that phase 2 could wait for: try each script by sbatch --test-only itself" >&2
      exit 2
      ;;
  esac
  flags+=("$1")
  shift
done
if [[ -z $PHASE1_DIR || -z $PHASE2_DIR || ${1:-} != -- ]]; then
  sed -n '2,4s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
shift
for name in PHASE1_DIR PHASE2_DIR; do  # as the program does with run.dir
  if [[ ${!name} == \~/* ]]; then printf -v "$name" %s "$HOME/${!name:2}"; fi
done
# Where phase 1 is, and the configurations, reach the jobs by the environment alone. A flag counts before SBATCH_EXPORT.
exported=${SBATCH_EXPORT:-ALL} previous=""
for flag in "${flags[@]}"; do
  if [[ $flag == --export=* || $previous == --export ]]; then exported=${flag#--export=}; fi
  previous=$flag
done
if [[ ,${exported^^}, != *,ALL,* ]]; then
  echo "submit_phases: the jobs need this environment, and --export or SBATCH_EXPORT is $exported: say --export=ALL, or ALL,NAME=VALUE" >&2
  exit 2
fi
one_config=${MILLRACE_CONFIG:-}
if [[ -n $one_config && (-z ${PHASE1_CONFIG:-} || -z ${PHASE2_CONFIG:-}) ]]; then
  echo "submit_phases: MILLRACE_CONFIG=$one_config is the configuration of every phase without a PHASE1_CONFIG or PHASE2_CONFIG" >&2
fi

# What only phase 2 lacks would come to light when phase 1 has run for days. Where the program does not run here, the jobs tell.
program=${MILLRACE:-}
for place in build/cuda build/release ../..; do  # the last: from PREFIX/share/millrace
  if [[ -z $program && -x $home/$place/bin/millrace ]]; then program=$home/$place/bin/millrace; fi
done
program=${program:-millrace}
refuse_unset() { # PHASE CONFIG ARGUMENT...
  local said
  said=$(timeout -k 5 60 "$program" train --config "$2" "${@:3}" run.dir=RUN --print-config=json 2>&1 > /dev/null) || true
  if [[ $said == *": must be set"* ]]; then
    printf 'submit_phases: phase %s lacks settings, with %s:\n%s\nhint: what stands behind -- goes to both phases\n' "$1" "$2" "$said" >&2
    exit 2
  fi
}
if [[ ,$exported != *,MILLRACE*=* ]]; then  # else the jobs have others
  refuse_unset 1 "${PHASE1_CONFIG:-${one_config:-$home/configs/sd2_base_256.yaml}}" "$@"
  refuse_unset 2 "${PHASE2_CONFIG:-${one_config:-$home/configs/sd2_base_512.yaml}}" "$@"
fi

# submit CONFIG FLAG... SCRIPT ARGUMENT...: a job, and ID or ID;CLUSTER in the variable `job`. Sites' wrappers may print more.
submit() {
  local printed
  printed=$(MILLRACE_CONFIG=$1 sbatch --parsable "${flags[@]}" "${@:2}") || return 1
  job=${printed##*$'\n'}
  if [[ $job =~ ^[0-9]+(\;.+)?$ ]]; then return; fi
  printf 'submit_phases: sbatch --parsable printed no job id at its end:\n%s\nhint: squeue --me shows what was submitted\n' "$printed" >&2
  return 1
}

submit "${PHASE1_CONFIG:-$one_config}" "$home/slurm/phase1_256.sbatch" "$@" run.dir="$PHASE1_DIR" || exit 1
cluster=()
if [[ $job == *";"* ]]; then cluster=(-M "${job#*;}"); fi  # of another cluster sbatch adds the name
phase1=${job%%;*}
if ! submit "${PHASE2_CONFIG:-$one_config}" "${cluster[@]}" --dependency="afterok:$phase1" --kill-on-invalid-dep=yes \
  "$home/slurm/phase2_512.sbatch" "$@" run.dir="$PHASE2_DIR"; then
  scancel "${cluster[@]}" "$phase1" || true
  echo "submit_phases: phase 2 was refused, so phase 1 is cancelled again" >&2
  exit 1
fi
phase2=${job%%;*}

printf -v state %q "$PHASE1_DIR/STATE"
log=$(scontrol "${cluster[@]}" show job "$phase1" 2> /dev/null | sed -n 's/^ *StdOut=//p') || log=""
if [[ -n $log ]]; then printf -v log 'tail -F %q;  ' "$log"; fi
on=${cluster[*]:+ ${cluster[*]}}

cat << HINTS
phase1 $phase1
phase2 $phase2

follow     squeue$on -j $phase1,$phase2;  ${log}cat $state
save now   scancel$on --batch --signal=USR1 $phase1    saves, goes back to the queue and continues
stop       scancel$on $phase2 $phase1    both stay ended, at the last checkpoint; to keep all steps first 'save now', until $phase1 is PENDING
resubmit   the same command: each phase continues where its folder stands, and a finished phase 1 ends at once
HINTS
