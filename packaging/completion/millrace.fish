# Completion for fish: commands, options and settings, read from millrace's own --help, once per shell and command.
# Installed as PREFIX/share/fish/vendor_completions.d/millrace.fish; elsewhere: copy it to ~/.config/fish/completions.

# __millrace_help PROGRAM [COMMAND]: its --help; of millrace itself without a command.
function __millrace_help
    set -l name __millrace_help_text_(string escape --style=var -- "$argv")
    if not set -q $name
        set -g $name ($argv --help 2> /dev/null)
    end
    printf '%s\n' $$name
end

# __millrace_values KEY PROGRAM COMMAND: the words that a setting may have, where the help lists them ("ddp | full_shard  how ...").
function __millrace_values
    set -l key (string escape --style=regex -- $argv[1])
    set -l line (__millrace_help $argv[2..3] | string replace -rf -- "^  $key( .*)" '$1')
    set -l words (string match -r '[a-z0-9_]+(?: \| [a-z0-9_]+)+' -- $line | string split ' | ')
    if string match -q '* true or false*' -- $line
        set words true false
    end
    if string match -qr 'auto  |or auto' -- $line
        set -a words auto
    end
    if string match -q '*or null*' -- $line
        set -a words null
    end
    string join \n -- $words
end

# What stands before "=" in the word that is being completed.
function __millrace_key
    string replace -rf '=.*' '' -- (commandline -ct)
end

function __millrace_complete
    set -l before (commandline -opc)
    set -l key (__millrace_key)
    if not set -q before[2]
        __millrace_help $before[1] | string replace -rf '^  ([a-z-]+) +(.*)' '$1\t$2'
        printf '%s\n' --help --version --licenses
    else if test -n "$key"
        for value in (__millrace_values $key $before[1..2])
            echo "$key=$value"
        end
    else if not string match -q -- '--*' $before[-1]; or string match -q -- '-*' (commandline -ct)
        __millrace_help $before[1..2] | string replace -rf '^  (--[a-z-]+).*  (.*)' '$1\t$2'
        __millrace_help $before[1..2] | string replace -rf '^  ([a-z0-9_]+(?:\.[a-z0-9_]+)*)  .*  (.*)' '$1=\t$2'
        echo --help
    end
end

# A command, or a value that the help lists, is no file.
function __millrace_no_files
    set -l before (commandline -opc)
    set -l key (__millrace_key)
    if not set -q before[2]
        return 0
    end
    test -n "$key"; and string match -q -- (commandline -ct)'*' $key=(__millrace_values $key $before[1..2])
end

complete -c millrace -n __millrace_no_files -f
complete -c millrace -a '(__millrace_complete)'
