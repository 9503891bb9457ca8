/* Loaded into NFS-Ganesha (docs/decisions/0014): three things that its configuration cannot say.
 *
 * BRAID_NFS_MOUNTS  a mount table with only the exported file system in it. Ganesha claims the file system
 *                   above an export, too, and then takes handles of files there.
 * BRAID_NFS_FSID    the file system's identity, "MAJOR MINOR". FUSE has none, so Ganesha would put the number
 *                   of the device into its file handles, which is another one after each mount.
 * Ganesha's services are not registered with rpcbind: it would take the entries of other servers of this
 * host away, and would not start where rpcbind does not run.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* f_type of a FUSE file system (linux/magic.h). */
#define FUSE 0x65735546

FILE *setmntent(const char *table, const char *mode)
{
    const char *own = getenv("BRAID_NFS_MOUNTS");
    return fopen(own ? own : table, mode);
}

int statfs64(const char *path, struct statfs64 *about)
{
    if (syscall(SYS_statfs, path, about) != 0)
        return -1;
    const char *fsid = getenv("BRAID_NFS_FSID");
    int *id = about->f_fsid.__val;
    if (fsid && about->f_type == FUSE && sscanf(fsid, "%d %d", &id[0], &id[1]) != 2)
        abort();
    return 0;
}

bool rpcb_unset(uint32_t program, uint32_t version, const void *transport)
{
    (void)program, (void)version, (void)transport;
    return true;
}

typedef bool register_service(void *, uint32_t, uint32_t, void *, const void *);

bool svc_reg(void *transport, uint32_t program, uint32_t version, void *dispatch, const void *unused)
{
    (void)unused;
    register_service *real = (register_service *)dlsym(RTLD_NEXT, "svc_reg");
    return real && real(transport, program, version, dispatch, NULL);
}
