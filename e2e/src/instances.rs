//! Instances as containers of this machine: real PostgreSQL under a real instance manager, a real API server, no kubelet.
//! The harness mounts what a kubelet would mount and writes into the pods' status what a kubelet would write.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Container, Pod, PodSpec, Secret, ServiceAccount},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use operator_core::names::{
    ANNOTATION_SUCCESSION, DIR_APP, DIR_BIN, DIR_CONFIG, DIR_DATA, DIR_RUN, DIR_SUPERUSER, DIR_TLS_REPLICATION,
    DIR_TLS_SERVER, FILE_CONFIG, FILE_PASSWD,
};
use operator_core::record::{LeaseFields, Record};
use postgres_operator::k8s::{
    self, Cluster, Objects, Shape,
    certificates::{Purpose, authority, issue},
    cluster::Images,
    secrets::{Material, Root, password},
};
use serde::{Serialize, de::DeserializeOwned};
use testcontainers::{
    ContainerAsync, GenericImage, ImageExt,
    core::{AccessMode, Mount},
    runners::AsyncRunner,
};

use crate::{
    apiserver::{ApiServer, Identity, LABEL},
    controller::{program, token_of},
    crd,
    env::{image, name_and_tag, target},
    objects,
};

/// User and group of PostgreSQL.
const POSTGRES: u32 = 999;
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A cluster whose objects exist on an API server, and whose instances the test starts.
pub struct Instances {
    /// The API server.
    pub server: Arc<ApiServer>,
    /// A client that may do everything.
    pub client: Client,
    /// Namespace of the cluster.
    pub namespace: String,
    /// What the instances are given.
    pub cluster: Cluster,
    /// Certificates and passwords.
    pub material: Material,
    folder: PathBuf,
    program: PathBuf,
}

impl Instances {
    /// Makes every object of a cluster called `orders`, as the controller would, and an empty Lease.
    ///
    /// # Errors
    /// The harness doesn't run as root, which giving files to PostgreSQL's user takes; or the API server refuses something.
    pub async fn new(test: &str, replicas: u32) -> Result<Self> {
        ensure!(is_root(), "ring 4 gives files to user {POSTGRES}, which takes root: run it as root");
        let program = program().await?;
        let server = ApiServer::shared().await?;
        let client = server.client(&Identity::Admin).await?;
        crd::install(&client, &crd::postgres_cluster()).await?;
        let namespace = format!("ring4-{test}");
        objects::create_namespace(&client, &namespace).await?;
        let resource = create(&client, &namespace, &objects::cluster(&namespace, "orders", replicas)).await?;
        let images = Images { operator: "none".to_owned(), postgres: [(17, image("POSTGRES_IMAGE_17")?)].into() };
        let cluster = Cluster::check(&resource, &images)?;
        let material = material(&cluster)?;
        let folder = target().join("e2e").join(&namespace);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir_all(&folder)?,
        }
        let instances = Self { server, client, namespace, cluster, material, folder, program };
        instances.make_objects(replicas).await?;
        Ok(instances)
    }

    async fn make_objects(&self, replicas: u32) -> Result<()> {
        let Objects { service_account, role, role_binding, secrets, config_map, .. } =
            k8s::build(&self.cluster, &self.material, &Shape { replicas, sizes: BTreeMap::new() });
        create::<ServiceAccount>(&self.client, &self.namespace, &service_account).await?;
        create(&self.client, &self.namespace, &role).await?;
        create(&self.client, &self.namespace, &role_binding).await?;
        for secret in &secrets {
            create(&self.client, &self.namespace, secret).await?;
            self.write(secret)?;
        }
        let config = self.folder.join("config");
        fs::create_dir_all(&config)?;
        for (key, value) in config_map.data.iter().flatten() {
            fs::write(config.join(key), value)?;
        }
        ensure!(config.join(FILE_CONFIG).exists() && config.join(FILE_PASSWD).exists(), "the ConfigMap lacks a file");
        create(&self.client, &self.namespace, &config_map).await?;
        let metadata = ObjectMeta { name: Some("orders".to_owned()), ..ObjectMeta::default() };
        create(&self.client, &self.namespace, &Lease { metadata, spec: None }).await?;
        let token = token_of(&self.client, &self.namespace, "orders").await?;
        let account = self.folder.join("account");
        fs::create_dir_all(&account)?;
        fs::write(account.join("token"), token)?;
        fs::write(account.join("ca.crt"), self.server.endpoint().1)?;
        fs::write(account.join("namespace"), &self.namespace)?;
        Ok(())
    }

    /// Writes a Secret as the kubelet mounts it: for root and for PostgreSQL's group.
    fn write(&self, secret: &Secret) -> Result<()> {
        let folder = self.folder.join(secret.metadata.name.as_deref().unwrap_or_default());
        fs::create_dir_all(&folder)?;
        for (key, value) in secret.data.iter().flatten() {
            let file = folder.join(key);
            fs::write(&file, &value.0)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o440))?;
            chown(&file, Some(0), Some(POSTGRES))?;
        }
        Ok(())
    }

    /// The data volume of an instance, made when it is first asked for.
    ///
    /// # Errors
    /// It can't be made.
    pub fn volume(&self, ordinal: u32) -> Result<PathBuf> {
        let volume = self.folder.join(format!("data-{ordinal}"));
        fs::create_dir_all(&volume)?;
        chown(&volume, Some(POSTGRES), Some(POSTGRES))?;
        Ok(volume)
    }

    /// Starts an instance: a new pod of its name, on its volume.
    ///
    /// # Errors
    /// The container can't be started.
    pub async fn start(&self, ordinal: u32) -> Result<Instance> {
        let pod = self.cluster.name.pod(ordinal);
        self.make_pod(&pod).await?;
        let image = self.cluster.image.clone();
        let (name, tag) = name_and_tag(&image);
        let (port, _) = self.server.endpoint();
        let mut request = GenericImage::new(name, tag)
            .with_entrypoint(&format!("{DIR_BIN}/postgres-operator"))
            .with_cmd(["instance"])
            .with_network("bridge")
            .with_label(LABEL, std::process::id().to_string())
            .with_user(format!("{POSTGRES}:{POSTGRES}"))
            .with_readonly_rootfs(true)
            .with_cap_drop("ALL")
            .with_security_opt("no-new-privileges")
            .with_env_var("CLUSTER_NAME", self.cluster.name.as_str())
            .with_env_var("POD_NAME", &pod)
            .with_env_var("POD_NAMESPACE", &self.namespace)
            // The address is known only when the container runs; it is what the instance listens on.
            .with_env_var("POD_IP", "0.0.0.0")
            .with_env_var("KUBERNETES_SERVICE_HOST", "172.17.0.1")
            .with_env_var("KUBERNETES_SERVICE_PORT", port.to_string());
        for mount in self.mounts(ordinal)? {
            request = request.with_mount(mount);
        }
        let container = request.start().await.with_context(|| format!("starting {pod}"))?;
        let address = container.get_bridge_ip_address().await?.to_string();
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let status = Patch::Merge(serde_json::json!({"status": {"podIP": address, "phase": "Running"}}));
        pods.patch_status(&pod, &PatchParams::default(), &status).await?;
        let manager = self.manager(&address).await?;
        Ok(Instance { container, pod, address, manager })
    }

    fn mounts(&self, ordinal: u32) -> Result<Vec<Mount>> {
        let text = |path: &Path| path.display().to_string();
        let read_only =
            |from: PathBuf, to: &str| Mount::bind_mount(text(&from), to).with_access_mode(AccessMode::ReadOnly);
        let folder = |name: &str| self.folder.join(name);
        Ok(vec![
            Mount::bind_mount(text(&self.volume(ordinal)?), DIR_DATA),
            Mount::tmpfs_mount(DIR_RUN),
            Mount::tmpfs_mount("/tmp"),
            read_only(self.program.clone(), &format!("{DIR_BIN}/postgres-operator")),
            read_only(folder("config"), DIR_CONFIG),
            read_only(folder("config").join(FILE_PASSWD), "/etc/passwd"),
            read_only(folder("orders-server"), DIR_TLS_SERVER),
            read_only(folder("orders-replication"), DIR_TLS_REPLICATION),
            read_only(folder("orders-superuser"), DIR_SUPERUSER),
            read_only(folder("orders-app"), DIR_APP),
            read_only(folder("account"), ACCOUNT),
        ])
    }

    async fn make_pod(&self, pod: &str) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        if pods.get_opt(pod).await?.is_some() {
            return Ok(());
        }
        let container =
            Container { name: "postgres".to_owned(), image: Some("none".to_owned()), ..Container::default() };
        let metadata =
            ObjectMeta { name: Some(pod.to_owned()), labels: Some(self.cluster.labels()), ..ObjectMeta::default() };
        let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
        create(&self.client, &self.namespace, &Pod { metadata, spec: Some(spec), status: None }).await?;
        Ok(())
    }

    /// A client for the manager of the instance at this address, with the cluster's own certificate.
    async fn manager(&self, address: &str) -> Result<Client> {
        let Material { root, replication, .. } = &self.material;
        let leaf = crate::pki::Leaf { certificate: replication.certificate.clone(), key: replication.key.clone() };
        let url = format!("https://{address}:{}", operator_core::names::PORT_INSTANCE);
        let name = self.cluster.name.tls_name(&self.namespace);
        crate::apiserver::https_client(&url, &root.authority.certificate, Some(&leaf), Some(&name)).await
    }

    /// The record, and the Lease it is in.
    ///
    /// # Errors
    /// There is no Lease, or nothing readable in it.
    pub async fn record(&self) -> Result<(Lease, Option<Record>)> {
        let lease: Lease = Api::namespaced(self.client.clone(), &self.namespace).get("orders").await?;
        let annotation = lease.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION_SUCCESSION)).cloned();
        let spec = lease.spec.clone().unwrap_or_default();
        let (Some(annotation), Some(holder_identity)) = (annotation, spec.holder_identity) else {
            return Ok((lease, None));
        };
        let lease_transitions = spec.lease_transitions.unwrap_or_default();
        let record = Record::decode(&LeaseFields { holder_identity, lease_transitions, annotation })?;
        Ok((lease, Some(record)))
    }

    /// Writes a record into the Lease, whoever held it: what only a person with full rights could do.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn force_record(&self, record: &Record) -> Result<()> {
        let LeaseFields { holder_identity, lease_transitions, annotation } = record.encode()?;
        let patch = serde_json::json!({
            "metadata": {"annotations": {ANNOTATION_SUCCESSION: annotation}},
            "spec": {"holderIdentity": holder_identity, "leaseTransitions": lease_transitions},
        });
        let leases = Api::<Lease>::namespaced(self.client.clone(), &self.namespace);
        leases.patch("orders", &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Every file below the data directory of an instance, with size and time of change.
    ///
    /// # Errors
    /// It can't be read.
    pub fn files(&self, ordinal: u32) -> Result<BTreeMap<PathBuf, (u64, std::time::SystemTime)>> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.volume(ordinal)?.join("pgdata")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if meta.is_dir() {
                    folders.push(entry.path());
                } else {
                    files.insert(entry.path(), (meta.len(), meta.modified()?));
                }
            }
        }
        Ok(files)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        // Several hundred megabytes; the logs of a failed test were printed.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// One running instance; its container goes when it is dropped.
pub struct Instance {
    container: ContainerAsync<GenericImage>,
    /// Name of the pod.
    pub pod: String,
    /// Its address.
    pub address: String,
    /// Client of its manager.
    pub manager: Client,
}

impl Instance {
    /// What it says of itself.
    ///
    /// # Errors
    /// It doesn't answer.
    pub async fn status(&self) -> Result<operator_core::status::InstanceStatus> {
        let request = http::Request::get("/status").body(Vec::new())?;
        Ok(self.manager.request(request).await?)
    }

    /// SQL as the superuser, inside the container.
    ///
    /// # Errors
    /// It fails; psql's words are in the message.
    pub async fn sql(&self, database: &str, sql: &str) -> Result<String> {
        let command = ["psql", "-h", DIR_RUN, "-U", "postgres", "-d", database, "-XAtc", sql];
        let command = [["exec", self.container.id()].as_slice(), &command].concat();
        let output = tokio::process::Command::new("docker").args(command).kill_on_drop(true).output();
        let output = tokio::time::timeout(Duration::from_secs(15), output).await.context("psql hangs")??;
        ensure!(output.status.success(), "{}: {}", self.pod, String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Stops it as the kubelet does: SIGTERM, a minute of patience. Its log is returned.
    ///
    /// # Errors
    /// It doesn't end in good order.
    pub async fn stop(self) -> Result<String> {
        self.container.stop_with_timeout(Some(60)).await?;
        let code = self.container.exit_code().await?;
        let log = self.log().await;
        ensure!(code == Some(0), "{} ended with {code:?}:\n{log}", self.pod);
        self.container.rm().await?;
        Ok(log)
    }

    /// Kills it, as a node's death would.
    ///
    /// # Errors
    /// The engine refuses.
    pub async fn kill(self) -> Result<()> {
        self.container.stop_with_timeout(Some(0)).await?;
        Ok(self.container.rm().await?)
    }

    /// The end of its log.
    pub async fn log(&self) -> String {
        let output = self.container.stdout_to_vec().await.unwrap_or_default();
        let text = String::from_utf8_lossy(&output).into_owned();
        let skip = text.lines().count().saturating_sub(25);
        text.lines().skip(skip).collect::<Vec<_>>().join("\n")
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

fn material(cluster: &Cluster) -> Result<Material> {
    let now = Timestamp::now();
    let authority = authority(cluster, now)?;
    Ok(Material {
        server: issue(cluster, &authority, Purpose::Server, now)?,
        replication: issue(cluster, &authority, Purpose::Replication, now)?,
        root: Root { authority, app_password: password()?, superuser_password: password()? },
    })
}

async fn create<K>(client: &Client, namespace: &str, object: &K) -> Result<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let what = || format!("creating {} {:?}", K::kind(&()), object.meta().name);
    api.create(&PostParams::default(), object).await.with_context(what)
}
