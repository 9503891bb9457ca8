//! libiscsi, loaded when the first `iscsi://` device is opened: programs without any need not have it.
//!
//! Only what is used is declared, for the one version of the library's binary interface that the
//! layouts below are those of.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

use libloading::os::unix;

/// The library, by the name of its binary interface.
const LIBRARY: &str = "libiscsi.so.7";

/// Statuses of commands; those beyond a byte are libiscsi's own.
pub const STATUS_GOOD: c_int = 0;
pub const STATUS_CHECK: c_int = 2;
pub const STATUS_BUSY: c_int = 8;
pub const STATUS_CONFLICT: c_int = 0x18;
pub const STATUS_QUEUE_FULL: c_int = 0x28;
/// By another initiator.
pub const STATUS_ABORTED: c_int = 0x40;
pub const STATUS_CANCELLED: c_int = 0x0f00_0000;
pub const STATUS_ERROR: c_int = 0x0f00_0001;

/// Where data goes.
pub const XFER_NONE: c_int = 0;
pub const XFER_READ: c_int = 1;
pub const XFER_WRITE: c_int = 2;

/// `ISCSI_SESSION_DISCOVERY`
pub const SESSION_DISCOVERY: c_int = 1;
/// `ISCSI_SESSION_NORMAL`
pub const SESSION_NORMAL: c_int = 2;
/// `ISCSI_HEADER_DIGEST_NONE`
pub const DIGEST_NONE: c_int = 0;

/// `struct iscsi_context`
#[repr(C)]
pub struct Context {
    _opaque: [u8; 0],
    _not_sync: PhantomData<*mut u8>,
}

/// `struct scsi_sense`, as far as it is read.
#[repr(C)]
pub struct Sense {
    pub error_type: c_uchar,
    pub key: c_uint,
    pub ascq: c_int,
    _specific: c_uint,
    _pointer: c_uchar,
    _field: u16,
}

/// `struct scsi_task`, as far as it is read.
#[repr(C)]
pub struct Task {
    pub status: c_int,
    pub cdb_size: c_int,
    pub xfer_dir: c_int,
    pub expxferlen: c_int,
    pub cdb: [c_uchar; 16],
    pub residual_status: c_uint,
    pub residual: usize,
    pub sense: Sense,
}

/// `SCSI_RESIDUAL_UNDERFLOW`
pub const UNDERFLOW: c_uint = 1;

const _: () = assert!(core::mem::offset_of!(Task, residual) == 40);
const _: () = assert!(core::mem::offset_of!(Task, sense) == 48);
const _: () = assert!(core::mem::offset_of!(Sense, ascq) == 8);

/// `struct scsi_iovec`
#[repr(C)]
#[derive(Debug)]
pub struct IoVec {
    pub base: *mut c_void,
    pub len: usize,
}

/// `iscsi_command_cb`
pub type Callback = unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void);

macro_rules! library {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions that are used.
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// They are valid as long as it is loaded.
            _loaded: unix::Library,
        }
        impl Library {
            /// # Safety
            /// `library` is libiscsi.
            unsafe fn of(library: unix::Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the type is that of the function of this name in the library's header.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(stringify!($name))
                    }?;
                )*
                Ok(Self { $($name,)* _loaded: library })
            }
        }
    };
}

library! {
    iscsi_create_context: fn(*const c_char) -> *mut Context;
    iscsi_destroy_context: fn(*mut Context) -> c_int;
    iscsi_set_targetname: fn(*mut Context, *const c_char) -> c_int;
    iscsi_set_session_type: fn(*mut Context, c_int) -> c_int;
    iscsi_set_header_digest: fn(*mut Context, c_int) -> c_int;
    iscsi_set_initiator_username_pwd: fn(*mut Context, *const c_char, *const c_char) -> c_int;
    iscsi_set_target_username_pwd: fn(*mut Context, *const c_char, *const c_char) -> c_int;
    iscsi_set_isid_random: fn(*mut Context, u32, u32) -> c_int;
    iscsi_set_noautoreconnect: fn(*mut Context, c_int);
    iscsi_set_timeout: fn(*mut Context, c_int) -> c_int;
    iscsi_set_tcp_keepalive: fn(*mut Context, c_int, c_int, c_int) -> c_int;
    iscsi_full_connect_async: fn(*mut Context, *const c_char, c_int, Callback, *mut c_void) -> c_int;
    iscsi_connect_async: fn(*mut Context, *const c_char, Callback, *mut c_void) -> c_int;
    iscsi_login_async: fn(*mut Context, Callback, *mut c_void) -> c_int;
    iscsi_discovery_async: fn(*mut Context, Callback, *mut c_void) -> c_int;
    iscsi_get_fd: fn(*mut Context) -> c_int;
    iscsi_which_events: fn(*mut Context) -> c_int;
    iscsi_service: fn(*mut Context, c_int) -> c_int;
    iscsi_get_error: fn(*mut Context) -> *const c_char;
    iscsi_scsi_command_async: fn(*mut Context, c_int, *mut Task, Callback, *mut c_void, *mut c_void) -> c_int;
    iscsi_task_mgmt_lun_reset_async: fn(*mut Context, u32, Callback, *mut c_void) -> c_int;
    scsi_create_task: fn(c_int, *const c_uchar, c_int, c_int) -> *mut Task;
    scsi_free_scsi_task: fn(*mut Task);
    scsi_task_set_iov_in: fn(*mut Task, *mut IoVec, c_int);
    scsi_task_set_iov_out: fn(*mut Task, *mut IoVec, c_int);
}

impl Library {
    /// The library, loaded once.
    ///
    /// # Errors
    /// Why it cannot be, and the package that brings it.
    pub fn get() -> Result<&'static Self, &'static str> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }
    fn load() -> Result<Self, String> {
        // SAFETY: what libiscsi does when it is loaded concerns nothing of this process.
        let library = unsafe { unix::Library::open(Some(LIBRARY), unix::RTLD_NOW) };
        let library = library
            .map_err(|_| "iscsi:// devices need libiscsi.so.7: install Debian's libiscsi7")?;
        // SAFETY: it is.
        unsafe { Self::of(library) }.map_err(|why| format!("{LIBRARY}: {why}"))
    }
    /// What the library says went wrong last.
    ///
    /// # Safety
    /// `context` is alive, and nobody else uses it.
    pub unsafe fn error(&self, context: *mut Context) -> String {
        // SAFETY: a string of the context, copied before it is used again.
        unsafe {
            let text = (self.iscsi_get_error)(context);
            if text.is_null() {
                return String::new();
            }
            CStr::from_ptr(text).to_string_lossy().trim().to_owned()
        }
    }
}
