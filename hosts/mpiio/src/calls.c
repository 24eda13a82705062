/* The MPI functions that programs call. */
#include "dualpar.h"
#include "shim.h"

/* count is int, in the functions for large counts MPI_Count. */
#define AT(name, counts, data, write, all)                                                                                     \
    static int pass_##name(const struct access *a)                                                                             \
    {                                                                                                                          \
        return NEXT(MPI_File_##name)(a->file, a->offset, a->buffer, (counts)a->count, a->type, a->status);                     \
    }                                                                                                                          \
    SHOWN int MPI_File_##name(MPI_File file, MPI_Offset offset, data buffer, counts count, MPI_Datatype type,                  \
                              MPI_Status *status)                                                                              \
    {                                                                                                                          \
        struct access access = {#name, file, EXPLICIT, write, all, offset, (void *)buffer, count, type, status, pass_##name};  \
        return data_call(&access);                                                                                             \
    }

#define FROM(name, counts, data, pointer, write, all)                                                                          \
    static int pass_##name(const struct access *a)                                                                             \
    {                                                                                                                          \
        return NEXT(MPI_File_##name)(a->file, a->buffer, (counts)a->count, a->type, a->status);                                \
    }                                                                                                                          \
    SHOWN int MPI_File_##name(MPI_File file, data buffer, counts count, MPI_Datatype type, MPI_Status *status)                 \
    {                                                                                                                          \
        struct access access = {#name, file, pointer, write, all, 0, (void *)buffer, count, type, status, pass_##name};        \
        return data_call(&access);                                                                                             \
    }

/* Calls that return before the data has moved. */
#define LATER_AT(name, counts, data, write, all)                                                                               \
    SHOWN int MPI_File_##name(MPI_File file, MPI_Offset offset, data buffer, counts count, MPI_Datatype type,                  \
                              MPI_Request *request)                                                                            \
    {                                                                                                                          \
        file_note(file, write, all);                                                                                           \
        return NEXT(MPI_File_##name)(file, offset, buffer, count, type, request);                                              \
    }

#define LATER(name, counts, data, write, all)                                                                                  \
    SHOWN int MPI_File_##name(MPI_File file, data buffer, counts count, MPI_Datatype type, MPI_Request *request)               \
    {                                                                                                                          \
        file_note(file, write, all);                                                                                           \
        struct file *pointing = all ? NULL : pointer_hold(file);                                                               \
        int result = NEXT(MPI_File_##name)(file, buffer, count, type, request);                                                \
        pointer_let_go(pointing);                                                                                              \
        return result;                                                                                                         \
    }

/* Until they are ended there are no other collective calls on the file. */
#define BEGIN_AT(name, counts, data, write)                                                                                    \
    SHOWN int MPI_File_##name(MPI_File file, MPI_Offset offset, data buffer, counts count, MPI_Datatype type)                  \
    {                                                                                                                          \
        file_note(file, write, false);                                                                                         \
        return NEXT(MPI_File_##name)(file, offset, buffer, count, type);                                                       \
    }

#define BEGIN(name, counts, data, write)                                                                                       \
    SHOWN int MPI_File_##name(MPI_File file, data buffer, counts count, MPI_Datatype type)                                     \
    {                                                                                                                          \
        file_note(file, write, false);                                                                                         \
        return NEXT(MPI_File_##name)(file, buffer, count, type);                                                               \
    }

#define ALL(c, counts)                                                                                                         \
    AT(read_at##c, counts, void *, false, false)                                                                               \
    AT(read_at_all##c, counts, void *, false, true)                                                                            \
    AT(write_at##c, counts, const void *, true, false)                                                                         \
    AT(write_at_all##c, counts, const void *, true, true)                                                                      \
    FROM(read##c, counts, void *, INDIVIDUAL, false, false)                                                                    \
    FROM(read_all##c, counts, void *, INDIVIDUAL, false, true)                                                                 \
    FROM(write##c, counts, const void *, INDIVIDUAL, true, false)                                                              \
    FROM(write_all##c, counts, const void *, INDIVIDUAL, true, true)                                                           \
    FROM(read_shared##c, counts, void *, SHARED, false, false)                                                                 \
    FROM(read_ordered##c, counts, void *, SHARED, false, true)                                                                 \
    FROM(write_shared##c, counts, const void *, SHARED, true, false)                                                           \
    FROM(write_ordered##c, counts, const void *, SHARED, true, true)                                                           \
    LATER_AT(iread_at##c, counts, void *, false, false)                                                                        \
    LATER_AT(iread_at_all##c, counts, void *, false, true)                                                                     \
    LATER_AT(iwrite_at##c, counts, const void *, true, false)                                                                  \
    LATER_AT(iwrite_at_all##c, counts, const void *, true, true)                                                               \
    LATER(iread##c, counts, void *, false, false)                                                                              \
    LATER(iread_all##c, counts, void *, false, true)                                                                           \
    LATER(iwrite##c, counts, const void *, true, false)                                                                        \
    LATER(iwrite_all##c, counts, const void *, true, true)                                                                     \
    LATER(iread_shared##c, counts, void *, false, false)                                                                       \
    LATER(iwrite_shared##c, counts, const void *, true, false)                                                                 \
    BEGIN_AT(read_at_all_begin##c, counts, void *, false)                                                                      \
    BEGIN_AT(write_at_all_begin##c, counts, const void *, true)                                                                \
    BEGIN(read_all_begin##c, counts, void *, false)                                                                            \
    BEGIN(write_all_begin##c, counts, const void *, true)                                                                      \
    BEGIN(read_ordered_begin##c, counts, void *, false)                                                                        \
    BEGIN(write_ordered_begin##c, counts, const void *, true)

ALL(, int)
#if MPI_VERSION >= 4
ALL(_c, MPI_Count)
#endif

SHOWN int MPI_File_open(MPI_Comm comm, const char *name, int amode, MPI_Info hints, MPI_File *file)
{
    dualpar_end_ghost();
    dualpar_message();
    int result = NEXT(MPI_File_open)(comm, name, amode, hints, file);
    file_opened(comm, name, amode, hints, result, result == MPI_SUCCESS ? *file : MPI_FILE_NULL);
    return result;
}

SHOWN int MPI_File_close(MPI_File *file)
{
    struct file *closing = file ? file_closing(*file) : NULL;
    int lost = dualpar_close(closing);
    int result = NEXT(MPI_File_close)(file);
    int left = failed(MPI_FILE_NULL, file_closed(closing));
    return result != MPI_SUCCESS ? result : lost != MPI_SUCCESS ? lost : left;
}

SHOWN int MPI_File_set_view(MPI_File file, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype type,
                            const char *representation, MPI_Info hints)
{
    dualpar_end_ghost();
    int result = NEXT(MPI_File_set_view)(file, displacement, etype, type, representation, hints);
    /* One that failed may have changed what the library has. */
    file_view(file, displacement, etype, result == MPI_SUCCESS ? type : MPI_DATATYPE_NULL, representation);
    return result;
}

SHOWN int MPI_Finalize(void)
{
    dualpar_end_ghost();
    files_end();
    dualpar_end();
    return NEXT(MPI_Finalize)();
}
