//! What the tier lies on: two devices of a fixed size.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SeekFrom, fallocate, flock, seek};
use rustix::io::Errno;
use sluice_storage::emulated::Emulated;
use sluice_storage::posix::{PosixOptions, PosixStorage};
use sluice_storage::{Data, FileRef, Storage};

/// A device of a fixed size, or a file that stands for one. Calls come from many threads at once and may block.
pub trait Device: Send + Sync {
    /// Bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The operating system's. What `buf` holds then means nothing.
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// The operating system's. Any part may have been written then.
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Makes durable what was written before the call.
    ///
    /// # Errors
    /// The operating system's. What was written may be lost then, even if a later call succeeds.
    fn flush(&self) -> io::Result<()>;

    /// The range reads as zeros from now on; with `trim` its space may be given back.
    ///
    /// # Errors
    /// As of [`Device::write`].
    fn zero(&self, offset: u64, len: u64, trim: bool) -> io::Result<()> {
        let _ = trim;
        let zeros = vec![0; len.min(1 << 20) as usize];
        let mut at = offset;
        while at < offset + len {
            let part = (offset + len - at).min(zeros.len() as u64);
            self.write(&zeros[..part as usize], at)?;
            at += part;
        }
        Ok(())
    }

    /// [`Device::zero`] with `trim` costs less than writing zeros. Else a trim is not passed on: it is a hint.
    fn trims(&self) -> bool {
        false
    }

    /// Up to where, from `offset`, the device holds data (`true`) or only zeros that take no space.
    ///
    /// # Errors
    /// The operating system's.
    fn extent(&self, offset: u64) -> io::Result<(u64, bool)> {
        let _ = offset;
        Ok((self.size(), true))
    }

    /// One line for people, with the word "emulated" if it is.
    fn describe(&self) -> String;
}

/// A file or block device, through the page cache, locked against another one that opens it so.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size: u64,
    block: bool,
}

impl FileDevice {
    /// Opens it and takes its lock (`flock`); a block device to `write` for this process alone.
    ///
    /// # Errors
    /// Those of opening it, with the path; `WouldBlock` if somebody else has the lock, `ResourceBusy` if a block device is mounted
    /// or otherwise in use.
    pub fn open(path: impl AsRef<Path>, write: bool) -> io::Result<FileDevice> {
        let path = path.as_ref();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file =
            OpenOptions::new().read(true).write(write).custom_flags(if write { libc::O_EXCL } else { 0 }).open(path);
        FileDevice::with(file.map_err(named)?, path).map_err(named)
    }

    /// Makes a file of this size, with its space taken at once where the file system can do that.
    ///
    /// # Errors
    /// As of [`FileDevice::open`]; `AlreadyExists` if there is something; a full device.
    pub fn create(path: impl AsRef<Path>, size: u64) -> io::Result<FileDevice> {
        let path = path.as_ref();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(named)?;
        let sized = match fallocate(&file, FallocateFlags::empty(), 0, size.max(1)) {
            Err(Errno::OPNOTSUPP) => file.set_len(size),
            other => other.map_err(io::Error::from),
        };
        sized.and_then(|()| FileDevice::with(file, path)).map_err(|error| {
            let _ = std::fs::remove_file(path);
            named(error)
        })
    }

    fn with(file: File, path: &Path) -> io::Result<FileDevice> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::WouldBlock, "in use by another process"),
            other => other.into(),
        })?;
        // Of a block device the metadata has no size.
        let size = seek(&file, SeekFrom::End(0))?;
        let block = file.metadata()?.file_type().is_block_device();
        Ok(FileDevice { file, path: path.to_owned(), size, block })
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn zero(&self, offset: u64, len: u64, trim: bool) -> io::Result<()> {
        let flags = match trim {
            true => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        // Block devices take whole sectors only; what cannot be done so is written.
        match fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Plain(self).zero(offset, len, trim),
            Err(other) => Err(other.into()),
        }
    }
    fn trims(&self) -> bool {
        true
    }
    fn extent(&self, offset: u64) -> io::Result<(u64, bool)> {
        if self.block || offset >= self.size {
            return Ok((self.size, true));
        }
        match seek(&self.file, SeekFrom::Hole(offset)) {
            Ok(hole) if hole > offset => Ok((hole, true)),
            Ok(_) => match seek(&self.file, SeekFrom::Data(offset)) {
                Ok(data) => Ok((data, false)),
                Err(Errno::NXIO) => Ok((self.size, false)),
                Err(other) => Err(other.into()),
            },
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((self.size, true)),
            Err(other) => Err(other.into()),
        }
    }
    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

/// A device without what it can do better than by writing.
struct Plain<'a>(&'a FileDevice);

impl Device for Plain<'_> {
    fn size(&self) -> u64 {
        self.0.size
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(buf, offset)
    }
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write(buf, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// A file of any storage as a device: an emulated disk, for example, or a file of a striped volume.
pub struct DataDevice {
    data: Arc<dyn Data>,
    file: FileRef,
    size: u64,
    /// Of a file that only this process may use.
    _lock: Option<FileDevice>,
}

impl DataDevice {
    /// A file with the times of a device model (a shipped one's name, or a path), locked as a [`FileDevice`].
    ///
    /// # Errors
    /// Those of opening it; `InvalidInput` if there is no such model, or it is no file in a directory.
    pub fn emulated(path: &Path, model: &str, seed: u64) -> io::Result<DataDevice> {
        let lock = FileDevice::open(path, true)?;
        let path = path.canonicalize()?;
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{}: not a file", path.display())));
        };
        let storage = Storage::from(PosixStorage::open(dir, PosixOptions::default())?);
        let storage = storage
            .wrapped(|data| Emulated::new(data, model, seed))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        let node = storage.namespace.lookup(&storage.namespace.root(), name)?;
        let file = storage.namespace.open(&node, OFlags::RDWR.bits() as i32)?;
        let device = DataDevice::new(storage.data, file, lock.size())?;
        Ok(DataDevice { _lock: Some(lock), ..device })
    }

    /// The first `size` bytes of a file that lies on one target.
    ///
    /// # Errors
    /// `Unsupported` if it lies on several targets.
    pub fn new(data: Arc<dyn Data>, file: FileRef, size: u64) -> io::Result<DataDevice> {
        if data.layout().targets() != 1 {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a tier needs a storage of one target"));
        }
        Ok(DataDevice { data, file, size, _lock: None })
    }
}

impl Device for DataDevice {
    fn size(&self) -> u64 {
        self.size
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let moved = self.data.read(&self.file, 0, offset + done as u64, &mut [IoSliceMut::new(rest)])?;
            if moved == 0 {
                // Beyond the end of the file, which is shorter than the device: zeros.
                buf[done..].fill(0);
                return Ok(());
            }
            done += moved;
        }
        Ok(())
    }
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let moved = self.data.write(&self.file, 0, offset + done as u64, &[IoSlice::new(&buf[done..])])?;
            if moved == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done += moved;
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.data.sync(&self.file, true)
    }
    fn describe(&self) -> String {
        self.data.describe()
    }
}
