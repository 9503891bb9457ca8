/*
 * A prober of libblkid for members of Braid pools, to be offered to util-linux: libblkid/src/superblocks/braid.c,
 * with `braid_idinfo` in superblocks.h and in the table of superblocks.c (beside the RAIDs). Until it is there, what
 * libblkid sees of a member is its boot sector, a DOS partition table without partitions.
 *
 * This file may be redistributed under the terms of the GNU Lesser General Public License.
 */
#include <stddef.h>
#include <stdint.h>

#include "crc32c.h"
#include "superblocks.h"

#define BRAID_MAGIC "BRAIDPL\0"
#define BRAID_OFF 0x10000U
#define BRAID_LEN_MAX 0x20000U
#define BRAID_LEN_GRAIN 4096U
#define BRAID_LAYOUT_REVISION 1

/* The head of a label: docs/FORMAT.md, section 1.1. */
struct braid_label {
	uint8_t magic[8];
	uint32_t crc;		/* CRC-32C of len bytes, this field zero */
	uint32_t len;
	uint32_t revision;
	uint32_t copy;
	uint64_t at;		/* own offset on the device */
	uint64_t epoch;
	uint64_t features_compat;
	uint64_t features_ro_compat;
	uint64_t features_incompat;
	uint8_t pool_uuid[16];
	uint8_t name[64];
	uint8_t member_uuid[16];
} __attribute__((packed));

static int probe_braid(blkid_probe pr, const struct blkid_idmag *mag)
{
	const struct braid_label *label;
	const unsigned char *whole;
	uint32_t len, crc;

	label = blkid_probe_get_sb(pr, mag, struct braid_label);
	if (!label)
		return errno ? -errno : BLKID_PROBE_NONE;

	len = le32_to_cpu(label->len);
	if (le32_to_cpu(label->revision) != BRAID_LAYOUT_REVISION ||
	    len < BRAID_LEN_GRAIN || len > BRAID_LEN_MAX || len % BRAID_LEN_GRAIN ||
	    le64_to_cpu(label->at) != BRAID_OFF)
		return BLKID_PROBE_NONE;

	whole = blkid_probe_get_sb_buffer(pr, mag, len);
	if (!whole)
		return errno ? -errno : BLKID_PROBE_NONE;
	label = (const struct braid_label *) whole;
	crc = ul_crc32c_exclude_offset(~0U, whole, len, offsetof(struct braid_label, crc),
				       sizeof(label->crc)) ^ ~0U;
	if (!blkid_probe_verify_csum(pr, crc, le32_to_cpu(label->crc)))
		return BLKID_PROBE_NONE;

	blkid_probe_set_uuid(pr, (unsigned char *) label->pool_uuid);
	blkid_probe_set_uuid_as(pr, (unsigned char *) label->member_uuid, "UUID_SUB");
	blkid_probe_set_label(pr, label->name, sizeof(label->name));
	blkid_probe_sprintf_version(pr, "%u", le32_to_cpu(label->revision));
	return BLKID_PROBE_OK;
}

const struct blkid_idinfo braid_idinfo = {
	.name      = "braid_member",
	.usage     = BLKID_USAGE_RAID,
	.probefunc = probe_braid,
	.magics    = {
		{ .magic = BRAID_MAGIC, .len = sizeof(BRAID_MAGIC) - 1, .kboff = BRAID_OFF >> 10 },
		{ NULL }
	}
};
