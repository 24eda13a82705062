//! Which data server has which bytes of a file, as file systems and hints tell it.
//!
//! What is told comes from outside: a record that is cut off, contradicts itself or means something that is not known here
//! gives no layout, and then calls are left to the MPI library.

/// Servers that a layout may name.
const MAX_SERVERS: i64 = 1 << 16;

/// A file is cut into chunks, each on one data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a chunk.
    unit: i64,
    /// Data servers, numbered from 0.
    servers: u32,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Round robin from this server on.
    From(u32),
    /// The server of each chunk, as hashing has it; where the table ends nothing is known.
    Table(Vec<u32>),
}

impl Layout {
    /// Round robin over `servers` in chunks of `unit` bytes from server `first` on.
    #[must_use]
    pub fn round_robin(unit: i64, first: i64, servers: i64) -> Option<Layout> {
        let is_sane = unit > 0 && (1..=MAX_SERVERS).contains(&servers) && (0..servers).contains(&first);
        is_sane.then_some(Layout { unit, servers: servers as u32, rule: Rule::From(first as u32) })
    }

    /// Chunks of `unit` bytes, the server of each in order; of shards that are placed by a hash.
    #[must_use]
    pub fn table(unit: i64, chunks: Vec<u32>) -> Option<Layout> {
        let servers = chunks.iter().max()?.checked_add(1)?;
        (unit > 0 && i64::from(servers) <= MAX_SERVERS).then_some(Layout { unit, servers, rule: Rule::Table(chunks) })
    }

    /// Bytes of a chunk.
    #[must_use]
    pub fn unit(&self) -> i64 {
        self.unit
    }

    /// How many data servers there are.
    #[must_use]
    pub fn servers(&self) -> u32 {
        self.servers
    }

    /// The server of a byte; `None` where it is not known. O(1).
    #[must_use]
    pub fn server_of(&self, offset: i64) -> Option<u32> {
        let chunk = offset.checked_div(self.unit).filter(|_| offset >= 0)?;
        match &self.rule {
            Rule::From(first) => Some(((chunk + i64::from(*first)) % i64::from(self.servers)) as u32),
            Rule::Table(chunks) => chunks.get(usize::try_from(chunk).ok()?).copied(),
        }
    }

    /// For reports: unit, servers, rule.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.rule {
            Rule::From(first) => format!("{} bytes round robin over {} from {first}", self.unit, self.servers),
            Rule::Table(chunks) => format!("{} chunks of {} bytes on {}", chunks.len(), self.unit, self.servers),
        }
    }

    /// As numbers, which processes send to each other: unit, first, servers; `None` of a table.
    #[must_use]
    pub fn numbers(&self) -> Option<[i64; 3]> {
        match self.rule {
            Rule::From(first) => Some([self.unit, i64::from(first), i64::from(self.servers)]),
            Rule::Table(_) => None,
        }
    }
}

/// `user.sluice.layout` of files on a striped volume of Sluicegate: `STRIPE FIRST TARGETS`, in bytes and numbers.
#[must_use]
pub fn of_sluice(value: &[u8]) -> Option<Layout> {
    let text = std::str::from_utf8(value).ok()?;
    let numbers: Option<Vec<i64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    match numbers?[..] {
        [unit, first, servers] => Layout::round_robin(unit, first, servers),
        _ => None,
    }
}

const LOV_MAGIC_V1: u32 = 0x0BD1_0BD0;
const LOV_MAGIC_V3: u32 = 0x0BD3_0BD0;
const LOV_PATTERN_RAID0: u32 = 1;

/// `lustre.lov`, as `lov_user_md` of Lustre's `lustre_user.h` has it: magic, pattern, object (16 bytes), stripe size, stripe
/// count (2 bytes), first object's generation (2), in version 3 the pool's name (16), then 24 bytes of each stripe's object,
/// the last 4 its target. Composite files (progressive layouts) have no single one.
#[must_use]
pub fn of_lustre(value: &[u8]) -> Option<Layout> {
    let number = |at: usize| Some(u32::from_le_bytes(value.get(at..at + 4)?.try_into().ok()?));
    let magic = number(0)?;
    let objects = match magic {
        LOV_MAGIC_V1 => 32,
        LOV_MAGIC_V3 => 48,
        _ => return None,
    };
    let unit = i64::from(number(24)?);
    let stripes = u16::from_le_bytes(value.get(28..30)?.try_into().ok()?);
    if number(4)? != LOV_PATTERN_RAID0 {
        return None;
    }
    // Two stripes may be on one target: then it has the data of both.
    let mut targets = Vec::new();
    for stripe in 0..usize::from(stripes) {
        let target = number(objects + stripe * 24 + 20)?;
        if targets.contains(&target) {
            return None;
        }
        targets.push(target);
    }
    Layout::round_robin(unit, 0, i64::from(stripes))
}

/// `trusted.glusterfs.pathinfo`: a tree of translators in brackets, leaves `<POSIX(brick):host:path>`. Of a file on one brick, or
/// on replicas of one, all of it is there; of a striped one (`<STRIPE:name> ... [unit]`) the unit is told by older versions.
/// With sharding only the first shard's place is told, and the others' are hashes of it: `shard`, the size of one, is 0
/// without.
#[must_use]
pub fn of_gluster(value: &[u8], shard: i64) -> Option<Layout> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0');
    let opened = text.matches('<').count();
    if opened == 0 || opened != text.matches('>').count() || text.matches('(').count() != text.matches(')').count() {
        return None;
    }
    let leaves = text.matches("<POSIX(").count();
    let is_plain = shard == 0 && !text.contains("<STRIPE:") && !text.contains("<EC:") && !text.contains("disperse");
    let replicas = text.contains("<REPLICATE:");
    (is_plain && (leaves == 1 || leaves > 1 && replicas)).then(|| Layout::round_robin(i64::MAX, 0, 1))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lov(magic: u32, pattern: u32, unit: u32, targets: &[u32]) -> Vec<u8> {
        let mut record = [magic.to_le_bytes(), pattern.to_le_bytes()].concat();
        record.extend([7; 16]);
        record.extend(unit.to_le_bytes());
        record.extend((targets.len() as u16).to_le_bytes());
        record.extend([0; 2]);
        if magic == LOV_MAGIC_V3 {
            record.extend(*b"pool\0\0\0\0\0\0\0\0\0\0\0\0");
        }
        for target in targets {
            record.extend([9; 20]);
            record.extend(target.to_le_bytes());
        }
        record
    }

    #[test]
    fn lustre_files_are_round_robin_over_their_targets() {
        for magic in [LOV_MAGIC_V1, LOV_MAGIC_V3] {
            let layout = of_lustre(&lov(magic, 1, 1 << 20, &[4, 9, 2])).unwrap();
            assert_eq!(layout, Layout::round_robin(1 << 20, 0, 3).unwrap());
            assert_eq!(layout.server_of(3 << 20), Some(0));
            assert_eq!(layout.server_of((5 << 20) - 1), Some(1));
        }
    }

    #[test]
    fn records_that_are_damaged_or_unknown_give_no_layout() {
        let whole = lov(LOV_MAGIC_V3, 1, 65536, &[0, 1]);
        for len in 0..whole.len() {
            assert_eq!(of_lustre(&whole[..len]), None, "{len} bytes of it");
        }
        assert_eq!(of_lustre(&lov(0x0BD6_0BD0, 1, 65536, &[0])), None, "composite");
        assert_eq!(of_lustre(&lov(LOV_MAGIC_V1, 0x100, 65536, &[0])), None, "data on the metadata server");
        assert_eq!(of_lustre(&lov(LOV_MAGIC_V1, 1, 0, &[0])), None);
        assert_eq!(of_lustre(&lov(LOV_MAGIC_V1, 1, 65536, &[])), None);
        assert_eq!(of_lustre(&lov(LOV_MAGIC_V1, 1, 65536, &[3, 3])), None);
        for text in
            ["", "65536", "65536 0", "0 0 4", "65536 4 4", "65536 -1 4", "65536 0 4 1", "a b c", "65536 0 999999"]
        {
            assert_eq!(of_sluice(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(of_sluice(b"\xff"), None);
        assert_eq!(of_sluice(b"65536 1 4").unwrap().server_of(3 * 65536), Some(0));
    }

    #[test]
    fn gluster_files_are_on_one_brick_unless_sharded() {
        let whole = b"(<DISTRIBUTE:v-dht> <POSIX(/b0):host:/b0/file>)";
        assert_eq!(of_gluster(whole, 0).unwrap().servers(), 1);
        assert_eq!(of_gluster(whole, 64 << 20), None);
        let replicated = b"(<DISTRIBUTE:v-dht> (<REPLICATE:v-0> <POSIX(/b0):h:/b0/f> <POSIX(/b1):h:/b1/f>))";
        assert_eq!(of_gluster(replicated, 0).unwrap().servers(), 1);
        for text in [
            "(<DISTRIBUTE:v-dht> <POSIX(/b0):host:/b0/file>",
            "(<STRIPE:v> <POSIX(/b0):h:/f> <POSIX(/b1):h:/f>)",
            "(<EC:v-disperse-0> <POSIX(/b0):h:/f> <POSIX(/b1):h:/f>)",
            "",
            "nonsense",
        ] {
            assert_eq!(of_gluster(text.as_bytes(), 0), None, "{text}");
        }
    }

    #[test]
    fn tables_know_as_much_as_they_have() {
        let layout = Layout::table(100, vec![2, 0, 2]).unwrap();
        assert_eq!((layout.servers(), layout.server_of(250), layout.server_of(300)), (3, Some(2), None));
        assert_eq!(layout.server_of(-1), None);
        assert!(Layout::table(100, vec![]).is_none() && Layout::table(100, vec![u32::MAX]).is_none());
    }
}
