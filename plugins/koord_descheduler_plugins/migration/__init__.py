"""MigrationController: moves pods by PodMigrationJobs, within quotas."""
