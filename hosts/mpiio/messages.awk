# Wrappers (C) of all MPI calls by which a process can tell another one something, or be told: of a preprocessed mpi.h, whatever
# MPI library and version it is of.
#
#   echo '#include <mpi.h>' | mpicc -E -P -x c - | awk -f messages.awk
#
# Not the calls that are, but those that are not messages are listed: what is new in a version of MPI is taken for one.

BEGIN {
    RS = ";"
    # Of this process alone, or wrapped elsewhere.
    split("Init Init_thread Initialized Finalize Finalized Is_thread_main Query_thread Pcontrol Alloc_mem Free_mem Cancel " \
          "Test_cancelled Request_free Topo_test Dims_create Cartdim_get Graphdims_get Reduce_local Buffer_attach Buffer_detach " \
          "Address Pack Pack_size Pack_external Pack_external_size Unpack Unpack_external Register_datarep Get_address Get_count " \
          "Get_elements Get_elements_x Get_version Get_library_version Get_processor_name Cart_coords Cart_get Cart_rank " \
          "Cart_shift Graph_get Graph_neighbors Graph_neighbors_count Dist_graph_neighbors Dist_graph_neighbors_count " \
          "Comm_rank Comm_size Comm_compare Comm_group Comm_test_inter Comm_remote_group Comm_remote_size Comm_delete_attr " \
          "Comm_free_keyval Comm_create_keyval Comm_create_errhandler Comm_call_errhandler Win_attach Win_detach " \
          "Win_shared_query Win_delete_attr Win_free_keyval Win_create_keyval Win_create_errhandler Win_call_errhandler", names, " ")
    for (i in names)
        is_local[names[i]] = 1
    families = "^(File|Type|T|Info|Op|Group|Errhandler|Error|Add_error|Status|Attr|Keyval|Aint|Grequest|(Comm|Win|Session)_(get|set)|Session_(call|create))_"
    # Where this holds, nobody sees the result in a ghost, which goes on; @N is an argument.
    unseen["Barrier"] = unseen["Send"] = unseen["Bsend"] = unseen["Ssend"] = unseen["Rsend"] = "1"
    unseen["Isend"] = unseen["Ibsend"] = unseen["Issend"] = unseen["Irsend"] = "is_started(@7)"
    unseen["Bcast"] = "!is_other(@5, @4)"
    unseen["Reduce"] = "is_other(@7, @6)"
    unseen["Gather"] = "is_other(@8, @7)"
    unseen["Gatherv"] = "is_other(@9, @8)"
    # Of nothing, which the MPI library itself can say.
    nothing["Wait"] = nothing["Test"] = "are_done(1, @1)"
    nothing["Waitall"] = nothing["Waitany"] = nothing["Waitsome"] = "are_done(@1, @2)"
    nothing["Testall"] = nothing["Testany"] = nothing["Testsome"] = "are_done(@1, @2)"
    print "#include \"messages.h\""
}

function with(condition, i) {
    for (i = 1; i <= count; i++)
        gsub("@" i, name[i], condition)
    return condition
}

match($0, /(^|[^A-Za-z0-9_])int[ \n]+MPI_[A-Za-z0-9_]+[ \n]*\(/) {
    call = substr($0, RSTART, RLENGTH)
    rest = substr($0, RSTART + RLENGTH)
    sub(/[ \n]*\($/, "", call)
    sub(/.*MPI_/, "", call)
    plain = call
    sub(/_c$/, "", plain)
    if (plain in is_local || plain ~ families || plain ~ /_(c2f|f2c|fromint|toint)$/ || call in is_made)
        next
    is_made[call] = 1
    depth = 1
    for (end = 1; depth > 0 && end <= length(rest); end++)
        depth += (substr(rest, end, 1) == "(") - (substr(rest, end, 1) == ")")
    parameters = substr(rest, 1, end - 2)
    gsub(/[ \n]+/, " ", parameters)
    count = parameters ~ /^ ?(void)? ?$/ ? 0 : split(parameters, name, ",")
    arguments = ""
    for (i = 1; i <= count; i++) {
        sub(/ *(\[.*)?$/, "", name[i])
        sub(/.*[ *]/, "", name[i])
        arguments = arguments (i > 1 ? ", " : "") name[i]
    }
    condition = plain in unseen ? with(unseen[plain]) : 0
    ends = plain in nothing ? "!" with(nothing[plain]) : 1
    printf "MESSAGE(%s, %s, %s, (%s), (%s))\n", call, condition, ends, parameters, arguments
}
